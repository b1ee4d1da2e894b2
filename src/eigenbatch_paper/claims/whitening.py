"""Section "Diversity manipulation via in-batch whitening": raw and whitened batches in turn.

Two readings of the protocol: batches are whitened in training (active), or training stays raw and
whitened copies of the batches are only measured (passive).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenbatch.runs import PairedDifference, paired_difference
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN, GREY, ORANGE, SHADE
from eigenbatch_paper.training_chunks import (
    FEWER_SEEDS,
    facts,
    settings_of,
    short,
    trained,
    training_chunk,
    training_claim,
)
from eigenbatch_paper.verdict import Verdict, decided, effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from eigenbatch.train import Observer

PERIOD = {"smoke": 4, "small": 100, "paper": 100}
AFTER = {"smoke": 0, "small": 68, "paper": 70 * 312}  # batches; epoch 70 in the paper
LATE = 70 / 90  # of a run: where the paper begins
RATIO = 1.37
ACTIVE, PASSIVE = "active", "passive"


def chunks(scale: Scale) -> list[Chunk]:
    """SimCLR, read at every step: whitened in training, or measured on whitened copies."""
    base: dict[str, Any] = {"small": {"epochs": 12}, "smoke": {"epochs": 3}}.get(scale, {})
    spans = {"whiten_period": PERIOD[scale], "whiten_after": AFTER[scale]}
    return [
        training_chunk(scale, seed, recipe="imagenet1k", read_every=1, **base, **changes)
        for seed in range(FEWER_SEEDS[scale])
        for changes in (spans, {"measure": spans})
    ]


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """The readings of a run; of a passive one also those of whitened copies."""
    spans = chunk.settings.get("measure")
    copies = place.runs / chunk.name / "whitened.jsonl"
    run = trained(chunk, place, observers=[] if spans is None else [_measuring(copies)])
    row = {**settings_of(chunk, place), **facts(run)}
    if spans is None:
        return [row | {"arm": ACTIVE}]
    lines = {line["step"]: line for line in map(json.loads, copies.read_text().splitlines())}
    measured = {
        name: short(lines[step][name] for step in sorted(lines))
        for name in ("gradient", "sigma_hat")
    }
    return [row | spans | {"arm": PASSIVE, "copies": measured}]


def _measuring(path: Path) -> "Observer":
    """Writes the gradient and sigma-hat of every batch, whitened, to a file beside the run.

    A step that is repeated after a resumption is written again; the last line counts.
    """
    from eigenbatch import infonce, spectrum, whiten
    from eigenbatch.core import Contrast
    from eigenbatch.train import Observer, Step, Training

    class Measuring(Observer):
        def on_step(self, training: Training, step: Step) -> None:
            rows = whiten(step.outcome.contrast().anchors)
            values = infonce(Contrast.paired(*rows.chunk(2)), training.method.tau)  # type: ignore[arg-type]
            line = {
                "step": training.step,
                "gradient": values.squared_gradient.double().mean().item(),
                "sigma_hat": spectrum(rows).top,
            }
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    return Measuring()


def judge(rows: list[Row]) -> Verdict:
    """The ratio of rolling variances, and the top eigenvalue of whitened batches."""
    ratios = {arm: _ratio([row for row in rows if row["arm"] == arm]) for arm in (ACTIVE, PASSIVE)}
    sigmas = {
        arm: float(np.mean([row["dim"] * _spans(row)[2] for row in rows if row["arm"] == arm]))
        for arm in (ACTIVE, PASSIVE)
    }
    beyond = [_over_bound(row) for row in rows]
    printed = float(np.log(RATIO))
    return decided(
        {"whitened batches have the smaller variance, 1.37 times": effect(ratios[ACTIVE], printed)},
        {
            "so have whitened copies of batches of a raw run": effect(ratios[PASSIVE], printed),
            "sigma of whitened batches within 10 % of 1/d": max(sigmas.values()) < 1.1,
            "the variance is below the bound (V) / n": max(beyond) <= 1,
        },
        "raw / whitened rolling variance: "
        + ", ".join(f"{arm} {_text(ratio)}" for arm, ratio in ratios.items())
        + "; sigma of whitened batches "
        + ", ".join(f"{arm} {sigma:.2f} / d" for arm, sigma in sigmas.items()),
        f"The mean rolling variance of a run is {min(beyond):.3g} to {max(beyond):.3g} times the "
        "bound (V) / n that the paper draws above it. Active: while batches are whitened nothing "
        "keeps the embeddings themselves apart, and sigma-hat of raw ones jumps up after a "
        "switch; at scale small its spans begin early, a raw one first, where the variance still "
        "falls, which is part of its ratio. Passive: batches and their whitened copies at the same "
        "steps, from 70/90 of the run on, where the paper begins; it was the spans in turn at "
        "first, which compared early raw batches with later whitened ones. Putting whitened rows "
        "back on the sphere undoes part of the whitening.",
    )


def _ratio(rows: list[Row]) -> PairedDifference:
    """Log of raw / whitened rolling variance, over runs."""
    logs = [np.log(raw / white) for raw, white, _ in map(_spans, rows)]
    return paired_difference(logs, [0.0] * len(logs))


def _text(ratio: PairedDifference) -> str:
    if not np.isfinite(ratio.low):
        return f"{np.exp(ratio.mean):.2f}x"
    return f"{np.exp(ratio.mean):.2f}x ({np.exp(ratio.low):.2f} to {np.exp(ratio.high):.2f})"


def _white(row: Row) -> np.ndarray:
    """Where batches are whitened in training."""
    step = np.arange(len(row["readings"]["gradient"])) - row["whiten_after"]
    return np.asarray((step >= 0) & (step // row["whiten_period"] % 2 == 1))


def _late(row: Row) -> int:
    """The first step that a raw run and its copies are compared at."""
    return int(LATE * len(row["copies"]["gradient"]))


def _spans(row: Row) -> tuple[float, float, float]:
    """Mean rolling variance of raw and of whitened batches, and sigma-hat of the latter."""
    period, gradient = row["whiten_period"], row["readings"]["gradient"]
    if row["arm"] == PASSIVE:
        late = slice(_late(row), None)
        raw, whitened = (
            float(np.mean(_rolling_variance(values[late], period)))
            for values in (gradient, row["copies"]["gradient"])
        )
        return raw, whitened, float(np.mean(row["copies"]["sigma_hat"][late]))
    white = _white(row)
    variances: dict[bool, list[float]] = {True: [], False: []}
    for start in range(row["whiten_after"], len(gradient) - period + 1, period):
        rolling = _rolling_variance(gradient[start : start + period], period)
        variances[bool(white[start])].append(float(np.mean(rolling)))
    sigma = np.array(row["readings"]["sigma_hat"])[white].mean()
    return float(np.mean(variances[False])), float(np.mean(variances[True])), float(sigma)


def _over_bound(row: Row) -> float:
    """Mean rolling variance of both, by the mean of (V) / n as the readings have it."""
    raw, whitened, _ = _spans(row)
    bound = row["readings"]["gradient_rolling_variance_bound"][row["whiten_after"] :]
    return float((raw + whitened) / 2 / np.mean(bound))


def _rolling_variance(values: Sequence[float], period: int) -> np.ndarray:
    """Of windows of half a period: 50 steps as printed."""
    window = max(2, period // 2)
    views = np.lib.stride_tricks.sliding_window_view(np.array(values), min(window, len(values)))
    return np.asarray(views.var(axis=1, ddof=1))


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gradient, its rolling variance and sigma-hat of one run of each arm."""
    figure.set_size_inches(9, 7)
    panels = figure.subplots(3, 2, sharex="col")
    for column, arm in enumerate((ACTIVE, PASSIVE)):
        row = next(row for row in rows if row["arm"] == arm)
        _draw_arm(panels[:, column], row)
        panels[0, column].set_title(f"{arm}: {WORDS[arm]}", fontsize=10)


WORDS = {ACTIVE: "whitened in training (grey)", PASSIVE: "copies measured, compared in grey"}


def _draw_arm(panels: "list[Axes]", row: Row) -> None:
    period, passive = row["whiten_period"], row["arm"] == PASSIVE
    lines = [("as trained", BLUE, row["readings"])]
    lines += passive * [("whitened copies", GREEN, row.get("copies"))]
    steps = np.arange(len(row["readings"]["gradient"]))
    top, middle, bottom = panels
    for name, colour, values in lines:
        top.plot(steps, values["gradient"], color=colour, lw=0.7, label=name)
        bottom.plot(steps, values["sigma_hat"], color=colour, lw=0.7)
        begin, length = (_late(row), len(steps)) if passive else (row["whiten_after"], period)
        for start in range(begin, len(steps), length):
            rolling = _rolling_variance(values["gradient"][start : start + length], period)
            last = min(start + length, len(steps))
            middle.plot(last - np.arange(len(rolling), 0, -1), rolling, color=colour, lw=0.7)
    bound = row["readings"]["gradient_rolling_variance_bound"]
    middle.plot(steps[: len(bound)], bound, color=ORANGE, lw=0.7, label="bound (V) / n")
    for level, name in zip(_spans(row)[:2], ("raw", "whitened"), strict=True):
        middle.axhline(level, color=GREY, ls="--", lw=1)
        middle.annotate(f"mean, {name}", (0, level), xycoords=("axes fraction", "data"), fontsize=7,
                        va="bottom", color=GREY)  # fmt: skip
    top.set(ylabel="mean squared gradient", yscale="log")
    top.legend(frameon=False, fontsize=7)
    middle.set(ylabel="variance of 50 steps", yscale="log")
    middle.legend(frameon=False, fontsize=7)
    bottom.axhline(1 / row["dim"], color=GREY, ls=":", lw=1)
    bottom.set(xlabel="step", ylabel="sigma-hat", yscale="log")
    shaded = steps >= _late(row) if passive else _white(row)
    for axes in panels:
        axes.fill_between(steps, 0, 1, where=shaded, transform=axes.get_xaxis_transform(),
                          color=SHADE, lw=0, zorder=0)  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="whitening",
    section="Diversity manipulation via in-batch whitening",
    statement="Whitening a batch brings sigma to about 1/d and lowers the 50-step rolling variance "
    "of the gradient by 1.37x.",
    printed="raw / whitened 1.37x; sigma about 1/d",
    criterion="Batches whitened in training have a smaller rolling variance than raw ones, by 1.37 "
    "times within the interval over runs; and so have whitened copies of a raw run at the same "
    "steps, from 70/90 of the run on; sigma is "
    "within 10 % of 1/d, and the rolling variance below the bound (V) / n.",
    runs="100 raw, 100 whitened steps in turn (at scale small 12 epochs, from step 68 on)",
    paper_size="ImageNet-1k, ResNet-50, n=4096, tau=0.1, 100 raw / 100 whitened steps in turn from "
    "epoch 70 of 90",
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
)
