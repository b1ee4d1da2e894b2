"""Settings of a training run, and the paper's own as recipes."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from eigenbatch.errors import ParameterError

Precision = Literal["32-true", "bf16-mixed"]
DATA = ("digits", "cifar10", "cifar100", "folder")
METHODS = ("simclr", "moco", "supcon")
ENCODERS = ("convnet", "resnet18", "resnet50")
OPTIMIZERS = ("lars", "sgd", "adamw")
NEGATIVES = ("all", "mixed", "distance")
COUNTS = ("epochs", "image_size", "evaluate_every", "width", "dim", "queue_size", "read_every",
          "train_images", "test_images", "whiten_period")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. Every field is in the manifest; two equal configs give equal runs."""

    data: str = "digits"
    data_dir: Path | None = None
    train_images: int | None = None  # a balanced part of the data; None: all
    test_images: int | None = None
    copies: int | None = None  # long-tailed classes, every training image this often
    image_size: int = 8
    strength: float = 1.0
    method: str = "simclr"
    tau: float = 0.2
    queue_size: int = 4096
    momentum: float = 0.999
    negatives: str = "all"
    whiten_period: int | None = None  # alternate raw and whitened batches
    encoder: str = "convnet"
    stem: Literal["imagenet", "cifar"] = "cifar"
    width: int = 32
    dim: int = 128
    selector: str = "random"
    batch_size: int = 128
    pool_size: int | None = None
    coverage: Literal["epoch", "stream", "free"] = "epoch"
    epochs: int = 20
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    warmup_epochs: int = 1
    evaluate_every: int = 1
    read_every: int | None = None  # steps between spectral readings; None: two an epoch
    transfer: str | None = None  # data whose labels the frozen features are probed with at the end
    transfer_dir: Path | None = None
    seed: int = 0
    workers: int = 0
    precision: Precision = "32-true"

    def __post_init__(self) -> None:
        for name, known in (
            ("data", DATA),
            ("method", METHODS),
            ("encoder", ENCODERS),
            ("optimizer", OPTIMIZERS),
            ("negatives", NEGATIVES),
        ):
            if getattr(self, name) not in known:
                raise ParameterError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name, least in (("batch_size", 2), *((name, 1) for name in COUNTS)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ParameterError(f"{name} must be at least {least}, got {number}")
        if not 0 <= self.momentum < 1:
            raise ParameterError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.negatives != "all" and self.method != "moco":
            raise ParameterError(
                f"negatives={self.negatives} works on MoCo's queue: set method=moco, or "
                "negatives=all"
            )
        if self.whiten_period is not None and self.method == "moco":
            raise ParameterError("whiten_period is for simclr and supcon: moco has no such batches")
        if self.encoder != "convnet" and self.width % 8:
            raise ParameterError(
                f"width must be a multiple of 8 for {self.encoder}, got {self.width}: oneDNN's "
                "kernels for narrower 1 x 1 convolutions can hang"
            )
        if self.copies is not None and (self.copies < 1 or self.train_images is None):
            raise ParameterError(
                f"copies={self.copies} needs train_images, and at least one copy of each image"
            )
        if self.transfer not in (None, *DATA):
            raise ParameterError(
                f"transfer must be none or one of {', '.join(DATA)}, got {self.transfer!r}"
            )
        if self.transfer not in (None, "digits") and self.transfer_dir is None:
            raise ParameterError(
                f"transfer={self.transfer} needs transfer_dir, the folder that holds it"
            )
        if self.data != "digits" and self.data_dir is None:
            raise ParameterError(f"{self.data} needs --data-dir, the folder that holds it")


def with_settings(config: TrainConfig, settings: list[str]) -> TrainConfig:
    """The config with fields replaced by "name=value" texts, as a command line gives them."""
    known = {field.name: getattr(config, field.name) for field in fields(config)}
    changes: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        if name not in known or not separator:
            raise ParameterError(
                f"cannot set {setting!r}: write NAME=VALUE with a name of {', '.join(known)}"
            )
        try:
            changes[name] = _parsed(text, TrainConfig.__annotations__[name])
        except ValueError as reason:
            raise ParameterError(f"cannot set {setting!r}: {reason}") from reason
    return replace(config, **changes)


def _parsed(text: str, kind: Any) -> Any:
    if text == "none" and type(None) in get_args(kind):
        return None
    for plain in (int, float, Path):  # the first that the field may hold
        if kind is plain or plain in get_args(kind):
            return plain(text)
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ValueError(f"it is one of {', '.join(get_args(kind))}")
    return text


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named setting and where it comes from."""

    summary: str
    config: TrainConfig


def fastest_precision() -> Precision:
    """bf16-mixed where the processor or GPU has instructions for it; elsewhere it is far slower."""
    import torch

    if torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    supported = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    supported = supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bf16-mixed" if supported else "32-true"


def recipes(data_dir: Path = Path("data")) -> dict[str, Recipe]:
    """The paper's settings, and small ones that a CPU can run."""
    imagenet100 = TrainConfig(
        data="folder", data_dir=data_dir, image_size=224, encoder="resnet18", stem="imagenet",
        width=64, batch_size=512, pool_size=5120, coverage="free", tau=0.1, epochs=200,
        optimizer="lars", lr=0.6, weight_decay=1e-6, warmup_epochs=10, evaluate_every=5, workers=8,
    )  # fmt: skip
    cifar = TrainConfig(
        data="cifar10", data_dir=data_dir, image_size=32, encoder="resnet18", stem="cifar",
        width=64, batch_size=512, pool_size=5120, coverage="free", tau=0.2, epochs=400,
        optimizer="sgd", lr=0.06, weight_decay=5e-4, warmup_epochs=10, evaluate_every=5, workers=4,
    )  # fmt: skip
    return {
        "digits": Recipe("embedded digits on a CPU, under a minute", TrainConfig()),
        "cifar10-cpu": Recipe(
            "CIFAR-10 with a four-layer ConvNet, for two cores",
            replace(
                cifar, encoder="convnet", width=32, batch_size=256, pool_size=None, epochs=10,
                coverage="epoch", optimizer="adamw", lr=1e-3, weight_decay=1e-4, warmup_epochs=1,
                evaluate_every=1, workers=0, precision=fastest_precision(),
            ),
        ),
        "folder-cpu": Recipe(
            "a folder or zip of pictures with a four-layer ConvNet, for two cores",
            TrainConfig(
                data="folder", data_dir=data_dir, image_size=32, batch_size=256, epochs=10,
                precision=fastest_precision(),
            ),
        ),
        "imagenet100": Recipe(
            "section Pool-Policy Comparison: ResNet-18, n=512, tau=0.1, 200 epochs, LARS",
            imagenet100,
        ),
        "cifar10": Recipe(
            "section Greedy vs. Pool: ResNet-18, n=512, tau=0.2, cosine over 400 epochs", cifar
        ),
        "moco-imagenet100": Recipe(
            "appendix MoCo v2: ResNet-18, n=256, tau=0.2, K=65,536, pool of 2n",
            replace(
                imagenet100, method="moco", tau=0.2, queue_size=65_536, batch_size=256,
                pool_size=512, optimizer="sgd", lr=0.03, weight_decay=1e-4,
            ),
        ),
        "imagenet1k": Recipe(
            "section Real-Data Band: ResNet-50, n=4096, tau=0.1, 90 epochs",
            replace(
                imagenet100, encoder="resnet50", batch_size=4096, pool_size=40_960, epochs=90,
                lr=4.8, dim=256,
            ),
        ),
    }  # fmt: skip
