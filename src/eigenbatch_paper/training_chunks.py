"""Training runs as chunks of claims: one run each, shared by every claim that asks for it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from eigenbatch_paper.claim import SCALES, Chunk, Claim, Compute, Place, Row, Scale
from eigenbatch_paper.sizes import printed_setting, setting

if TYPE_CHECKING:
    from eigenbatch.runs import RunRecord
    from eigenbatch.train import Observer, Run

SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 5, "paper": 5}
FEWER_SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "paper": 3}
MINUTES_A_RUN: Mapping[Scale, float] = {"smoke": 0.02, "small": 8.0, "paper": 600.0}

NAMES = {
    "data": "data", "train_images": "data.train_size", "test_images": "data.test_size",
    "picture_size": "data.size", "in_memory": "data.in_memory",
    "copies": "data.copies", "workers": "data.workers", "image_size": "views.size",
    "strength": "views.strength", "method": "method", "tau": "method.tau", "dim": "method.dim",
    "queue_size": "method.queue_size", "momentum": "method.momentum",
    "negatives": "method.negatives", "whiten_period": "method.whiten_period",
    "whiten_after": "method.whiten_after", "batch_negatives": "method.batch_negatives",
    "key_groups": "method.key_groups", "encoder": "encoder", "stem": "encoder.stem",
    "width": "encoder.width", "selector": "batches.selector", "batch_size": "batches.batch_size",
    "pool_size": "batches.pool_size", "replace": "batches.replace",
    "fill_cache": "batches.fill_cache", "fill_step": "batches.fill_step", "epochs": "budget.epochs",
    "precision": "budget.precision", "optimizer": "optimizer", "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay", "schedule": "schedule",
    "warmup_epochs": "schedule.warmup_epochs", "evaluate_every": "evaluation.every",
    "read_every": "evaluation.read_every", "transfer": "evaluation.transfer", "seed": "seed",
}  # fmt: skip
"""Short names that chunks and rows use, and the settings of a `Run` that they stand for."""

_SMALL = {
    "data": "folder", "picture_size": 32, "in_memory": True, "train_images": 10_000, "width": 32,
    "dim": 128, "tau": 0.1, "batch_size": 256, "pool_size": 5120, "replace": True,
    "fill_cache": "yes", "fill_step": 0, "epochs": 20, "evaluate_every": 2, "precision": "auto",
    "lr": 2e-3,
}  # fmt: skip
_SMOKE = {
    "data": "digits", "train_images": 256, "test_images": 128, "width": 4, "dim": 16, "tau": 0.1,
    "batch_size": 32, "pool_size": 128, "replace": True, "fill_cache": "yes",
    "fill_step": 0, "epochs": 2,
    "lr": 2e-3,
}  # fmt: skip
_MOCO = {"momentum": 0.99, "batch_negatives": True, "key_groups": 8}
_QUEUE: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": _MOCO | {"queue_size": 128},
    "small": _MOCO | {"queue_size": 8192},
    "paper": {},
}
_FOLDER_ONLY = ("picture_size", "in_memory")
MOCO_TAU = 0.2
_BASE: Mapping[Scale, Mapping[str, Any]] = {"smoke": _SMOKE, "small": _SMALL, "paper": {}}
_RECIPE: Mapping[Scale, str] = {"smoke": "digits", "small": "digits", "paper": "imagenet100"}

WHOLE_EPOCH = ("neighbours", "auto")
"""They plan all samples of an epoch and have no pools."""

READINGS = (
    "gradient", "certified_lower", "certified_upper", "paper_lower", "paper_upper", "sigma_hat",
    "alignment", "entropy_rank", "participation_ratio", "isotropy_gap", "isotropy_gap_unbiased",
    "miss", "solved_share", "gradient_force", "gradient_variance_bound",
    "gradient_rolling_variance_bound",
)  # fmt: skip


FINAL = (
    "knn", "rankme", "linear", "linear_5_labels", "linear_sgd", "transfer_knn", "transfer_linear",
)  # fmt: skip


def training_chunk(scale: Scale, seed: int, *, recipe: str | None = None, **changes: Any) -> Chunk:
    """One training run: a recipe with some settings changed.

    Args:
        scale: "paper" starts from the printed recipe, the others from a small setting of our own.
        seed: of the run.
        recipe: another recipe of the paper, used at paper scale only.
        **changes: settings by their short names, see `NAMES`.
    """
    name = recipe if recipe and scale == "paper" else _RECIPE[scale]
    base = dict(_BASE[scale])
    if changes.get("selector") in WHOLE_EPOCH:
        changes["replace"] = False
    if changes.get("data") == "cifar10":
        base = {key: value for key, value in base.items() if key not in _FOLDER_ONLY}
    if scale == "paper":
        changes = _changed(name, changes)
    settings = {"recipe": name, **base, **changes, "seed": seed}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    words = [str(settings.get("method", "simclr")), str(settings.get("selector", "random"))]
    return Chunk(f"{'-'.join(words)}-seed-{seed}-{digest}", settings)


def _changed(recipe_name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Without settings that the recipe has anyway, so that claims share their runs."""
    from eigenbatch.runs import flat
    from eigenbatch.train import recipe, to_plain

    known = flat(to_plain(recipe(recipe_name)))
    return {
        name: value
        for name, value in changes.items()
        if name in ("method", "selector") or known.get(NAMES.get(name, name)) != value
    }


def moco_chunk(scale: Scale, seed: int, **changes: Any) -> Chunk:
    """A MoCo run: a pool of two batches, as printed, and a queue of the scale's length."""
    changes = {"method": "moco", **_QUEUE[scale], **changes}
    if scale != "paper":
        batch = int({**_BASE[scale], **changes}["batch_size"])
        changes = {"tau": MOCO_TAU, "pool_size": 2 * batch} | changes
    return training_chunk(scale, seed, recipe="moco-imagenet100", **changes)


def supcon_chunk(scale: Scale, seed: int) -> Chunk:
    """SupCon in MoCo's protocol: its batch, pool, temperature, optimiser and views."""
    if scale == "paper":
        return training_chunk(scale, seed, recipe="moco-imagenet100", method="supcon")
    return training_chunk(scale, seed, method="supcon", tau=MOCO_TAU)


def batch_size(scale: Scale) -> int:
    """Samples per batch of the scale's base setting."""
    return run_of(training_chunk(scale, 0), Place(Path())).batches.batch_size


def policies(
    scale: Scale, selectors: Iterable[str], seeds: Mapping[Scale, int] = SEEDS, **changes: Any
) -> list[Chunk]:
    """Every selector with every seed; the selectors of one seed beside each other."""
    return [
        training_chunk(scale, seed, selector=selector, **changes)
        for seed in range(seeds[scale])
        for selector in selectors
    ]


def run_of(chunk: Chunk, place: Place) -> "Run":
    """The run that a chunk describes, with its data in the folder that the user gave."""
    from eigenbatch.train import override, recipe

    settings = dict(chunk.settings)
    texts = [f"{full}={_text(settings[n])}" for n, full in NAMES.items() if n in settings]
    kinds = [text for text in texts if "." not in text.partition("=")[0]]
    run = override(recipe(str(settings["recipe"])), [*kinds, *(t for t in texts if t not in kinds)])
    needed = data_sets(chunk)
    folder = place.folder(needed[0]) if needed else None
    return run if folder is None else override(run, [f"data.directory={folder}"])


def data_sets(chunk: Chunk) -> list[str]:
    """What the chunk needs on disk: what it trains on, then what it is probed on."""
    settings = chunk.settings
    if settings.get("data") == "digits":
        return []
    own = str(settings["recipe"])
    if "cifar10" in (settings.get("data"), own):
        own = "cifar10"
    elif own != "imagenet1k":
        own = "imagenet100"
    return [own, *settings.get("probed", ())]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train as the chunk says, or read the run if it is finished; its facts as one row."""
    return [{**settings_of(chunk, place), **facts(trained(chunk, place))}]


def settings_of(chunk: Chunk, place: Place) -> Row:
    """Every setting of the chunk's run by its short name."""
    from eigenbatch.runs import flat
    from eigenbatch.train import to_plain

    known = flat(to_plain(run_of(chunk, place)))
    settings = {short: known.get(name) for short, name in NAMES.items()}
    return settings | {"recipe": chunk.settings["recipe"]}


def classes(row: Row) -> int:
    """Classes of the data that a run was trained on."""
    if row["data"] != "folder":
        return 10
    return 1000 if row["recipe"] == "imagenet1k" else 100


def trained(chunk: Chunk, place: Place, **arguments: Any) -> "RunRecord":
    """The record of the chunk's run, trained as far as it is not."""
    import torch

    from eigenbatch.runs import RunDirectory, read_run
    from eigenbatch.train import train

    directory = RunDirectory(place.runs / chunk.name)
    resume = directory.manifest.exists()
    train(run_of(chunk, place), directory.path, resume=resume, devices=1, **arguments)
    return read_run(directory.path, clock="seconds" if torch.cuda.is_available() else "cpu_seconds")


def short_run(
    chunk: Chunk, place: Place, *, steps: int, observers: Sequence["Observer"] = ()
) -> "RunRecord":
    """The record of the first steps of the chunk's run; always trained from the beginning.

    In a directory of its own: another claim may be training the whole run.
    """
    import shutil

    from eigenbatch.train import Observer, Step, Training

    class Stop(Observer):
        def on_step(self, training: Training, step: Step) -> None:
            training.stop = training.step >= steps

    beginning = Chunk(f"{chunk.name}-first-{steps}", chunk.settings)
    shutil.rmtree(place.runs / beginning.name, ignore_errors=True)
    return trained(beginning, place, observers=[*observers, Stop()])


class TrainingFacts(TypedDict):
    """What a row says about a training run, beside its settings; all plain JSON."""

    first_accuracy: float
    final_accuracy: float
    seconds: float
    seconds_to_target: float
    epochs_to_target: float
    loss_area: float
    accuracy_area: float
    peak_sigma: float
    collapsed: bool
    selection_share: float
    mean_rank: float
    curve_epochs: list[float]  # of the evaluations
    times: list[float]  # processor or wall-clock seconds of the evaluations
    knn: list[float]
    rankme: list[float]
    losses: list[float]  # mean of every epoch
    final: dict[str, float]  # probes at the end
    steps_per_epoch: float
    read_at: list[float]  # steps of the readings
    readings: dict[str, list[float]]


def facts(run: "RunRecord") -> TrainingFacts:
    """What claims ask about a run: its summary, and curves.

    Without a GPU times are processor time: two runs share noisy cores, and all work is done there.
    """
    from eigenbatch.runs import summarise

    curve, losses, series = run.accuracy, run.series["loss"], run.series
    assert curve is not None
    read = series["spectral/gradient"]
    return {
        **asdict(summarise(run, area_epochs=run.metrics.end[1] / 2)),  # type: ignore[typeddict-item]
        "curve_epochs": curve.epoch.tolist(),
        "times": curve.seconds.tolist(),
        "knn": curve.value.tolist(),
        "rankme": series["rankme"].value.tolist(),
        "losses": [
            float(losses.value[losses.epoch == e].mean()) for e in sorted(set(losses.epoch))
        ],
        "final": {name: run.final(name) for name in FINAL if name in series},
        "steps_per_epoch": run.metrics.end[0] / run.metrics.end[1],
        "read_at": read.step.tolist(),
        "readings": {
            name: short(series[f"spectral/{name}"].value.tolist())
            for name in READINGS
            if f"spectral/{name}" in series
        },
    }


def short(values: Iterable[float]) -> list[float]:
    """To six digits: readings are most of a row, and rows are kept in results/."""
    return [float(f"{value:.6g}") for value in values]


def training_claim(
    *, runs: str, paper_size: str | None = None, compute: Compute = compute, **fields: Any
) -> Claim:
    """A claim whose chunks are training runs; `runs` says which, in words.

    paper_size: what the paper trains, where it is not ImageNet-100 with a ResNet-18.
    """
    size = {
        scale: f"{runs}: {setting(scale, fields['chunks'](scale), _BASE[scale])}"
        for scale in SCALES
    }
    size["paper"] = paper_size or f"{runs}: {printed_setting(fields['name'])}"
    minutes = {
        scale: len(fields["chunks"](scale)) * each / (1 if scale == "paper" else 2)
        for scale, each in MINUTES_A_RUN.items()
    }
    return Claim(
        size=size, minutes=minutes, compute=compute, needs=_needs(fields), trains=True, **fields
    )


def _needs(fields: Mapping[str, Any]) -> Callable[[Scale], frozenset[str]]:
    return lambda scale: frozenset(n for c in fields["chunks"](scale) for n in data_sets(c))
