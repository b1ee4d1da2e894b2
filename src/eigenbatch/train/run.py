"""A run: the settings of all its components, nested. The manifest holds exactly this."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from eigenbatch.errors import ParameterError, RunError
from eigenbatch.runs.directory import FORMAT, RunDirectory
from eigenbatch.train.batches import BatchesConfig
from eigenbatch.train.budget import BudgetConfig
from eigenbatch.train.data import DataConfig
from eigenbatch.train.data.sets.digits import DigitsConfig
from eigenbatch.train.encoders import ConvNetConfig, EncoderConfig
from eigenbatch.train.evaluation import EvaluationConfig
from eigenbatch.train.methods import MethodConfig, SimCLRConfig
from eigenbatch.train.optimizers import AdamWConfig, OptimizerConfig
from eigenbatch.train.schedules import CosineConfig, ScheduleConfig
from eigenbatch.train.settings import Config, Range, from_plain
from eigenbatch.train.views import ViewsConfig


@dataclass(frozen=True, kw_only=True)
class Run(Config):
    """Everything that decides the outcome of a training run: equal runs give equal results.

    Args:
        data: what is trained on.
        views: the two random views of an image.
        encoder: the network.
        method: loss and heads.
        batches: size of the batches and how they are selected.
        optimizer: learning rate and weight decay.
        schedule: how the learning rate changes.
        budget: epochs and precision.
        evaluation: when and on what the run is evaluated.
        seed: of weights, views and batches.

    Examples:
        >>> from eigenbatch.train.run import Run
        >>> from eigenbatch.train.settings import override
        >>> run = override(Run(), ["method=moco", "method.tau=0.1"])
        >>> run.method.tau, run.method.queue_size
        (0.1, 4096)
    """

    data: DataConfig = field(default_factory=DigitsConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    encoder: EncoderConfig = field(default_factory=ConvNetConfig)
    method: MethodConfig = field(default_factory=SimCLRConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig = field(default_factory=CosineConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0

    def validate(self) -> None:
        """Raise if components do not fit together or data cannot be found."""
        self.data.validate()
        if self.evaluation.transfer is not None:
            self.evaluation.transfer.validate()
        if self.data.pairs != self.method.pairs:
            fitting = [
                k for k, one in DataConfig.options().items() if one.pairs == self.method.pairs
            ]
            raise ParameterError(
                f"method {self.method.kind} does not train on data {self.data.kind}: "
                f"choose data from {', '.join(fitting)}"
            )
        if self.method.labels and not getattr(self.data, "labels", True):
            raise ParameterError(
                f"method {self.method.kind} learns from labels, but data.labels=false: use simclr"
            )
        self.method.check_batch(self.batches.batch_size)
        if self.batches.selector.partition("-")[0] == "auto" and not self.data.pairs:
            raise ParameterError(
                f"batches.selector={self.batches.selector} is for retrieval, but data "
                f"{self.data.kind} is judged by classes, where hard batches lose: take random"
            )
        if self.batches.selector.startswith("auto") and getattr(self.data, "held_out", 0) == 0:
            raise ParameterError(
                "batches.selector=auto compares training pairs with held-out ones: set "
                "data.held_out=512, or leave it out"
            )
        if self.encoder.words != self.data.pairs:
            fitting = [
                k for k, one in EncoderConfig.options().items() if one.words == self.data.pairs
            ]
            raise ParameterError(
                f"encoder {self.encoder.kind} does not read data {self.data.kind}: "
                f"choose encoder from {', '.join(fitting)}"
            )

    def summary(self, *, selector: bool = True) -> str:
        """One line for people: what is trained, on what, how long."""
        batches = f"batches of {self.batches.batch_size}"
        if selector:
            batches += f" ({self.batches.selector}), seed {self.seed}"
        return (
            f"{self.method.kind} on {self.data.kind}, encoder {self.encoder.kind}, {batches}, "
            f"{self.budget.epochs} epoch{'s' * (self.budget.epochs > 1)}"
        )


def load_run(directory: RunDirectory) -> Run:
    """The run whose settings a manifest holds.

    Args:
        directory: the run directory.

    Returns:
        The same settings that the run was started with.

    Examples:
        >>> from eigenbatch.runs import RunDirectory
        >>> from eigenbatch.train import Run, load_run, to_plain
        >>> directory = RunDirectory(tmp_path / "run")
        >>> directory.create(to_plain(Run(seed=3)), device="cpu")
        >>> load_run(directory).seed
        3
    """
    manifest = directory.read_manifest()
    if manifest.get("format") != FORMAT:
        raise RunError(
            f"{directory.path} was begun with an older version of eigenbatch: it can be reported "
            "on, but not resumed. Train again in another folder"
        )
    try:
        return from_plain(Run, manifest["config"])
    except ParameterError as reason:
        raise RunError(
            f"{directory.manifest} is damaged, or not of our trainer: {reason}"
        ) from None


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Flat settings that differ, with both values."""
    names = dict.fromkeys([*old, *new])
    both = {name: (old.get(name), new.get(name)) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}
