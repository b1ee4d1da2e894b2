"""Selectors against each other: same seeds, same budget, paired; resumable run by run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from eigenbatch.errors import ParameterError
from eigenbatch.experiments.assemble import parse_selector
from eigenbatch.experiments.config import TrainConfig
from eigenbatch.experiments.run_directory import RunDirectory
from eigenbatch.experiments.statistics import (
    PairedDifference,
    Summary,
    default_target,
    paired_difference,
    summarise,
)
from eigenbatch.experiments.training import train


@dataclass(frozen=True, slots=True)
class Entry:
    """One selector over all seeds, beside the baseline (the first selector)."""

    selector: str
    summaries: tuple[Summary, ...]  # by seed
    accuracy_gain: PairedDifference
    time_saved: PairedDifference  # relative: 0.15 is 15 % faster to the target


@dataclass(frozen=True, slots=True)
class Comparison:
    """All selectors, and the accuracy their times are measured to."""

    target: float
    entries: tuple[Entry, ...]


def compare(
    config: TrainConfig,
    selectors: Sequence[str],
    seeds: int,
    path: Path,
    *,
    target: float | None = None,
    progress: Callable[[str, int, float | None], None] = lambda selector, seed, accuracy: None,
    console: Console | None = None,
    accelerator: str = "auto",
) -> Comparison:
    """Train every selector with every seed, then summarise.

    Runs lie under `path`/SELECTOR/seed-K; finished ones are not run again, others are resumed.
    Seeds are the outer loop, so that an interrupted comparison has whole pairs. Without `target`,
    times are measured to where the baseline has 90 % of what it gains over its untrained encoder.
    `progress` is called with None when a run begins, and with its accuracy when it is done.
    """
    if seeds < 1:
        raise ParameterError(f"seeds must be at least 1, got {seeds}")
    if len(set(selectors)) != len(selectors) or len(selectors) < 2:
        raise ParameterError(
            f"give at least two different selectors, the first is the baseline: {selectors}"
        )
    for selector in selectors:
        parse_selector(selector)
    for seed in range(seeds):
        for selector in selectors:
            progress(selector, seed, None)
            run = RunDirectory(_place(path, selector, seed))
            train(
                replace(config, selector=selector, seed=config.seed + seed),
                run.path,
                resume=run.manifest.exists(),
                console=console,
                accelerator=accelerator,
                devices=1,
            )
            progress(selector, seed, run.read_metrics()[-1]["knn"])
    return load_comparison(selectors, seeds, path, target=target)


def load_comparison(
    selectors: Sequence[str], seeds: int, path: Path, *, target: float | None = None
) -> Comparison:
    """The comparison of runs that are already on disk."""
    metrics = {
        selector: [
            RunDirectory(_place(path, selector, seed)).read_metrics() for seed in range(seeds)
        ]
        for selector in selectors
    }
    baseline = selectors[0]
    if target is None:
        runs = [summarise(run, target=1.0) for run in metrics[baseline]]
        target = default_target(
            [run.first_accuracy for run in runs], [run.final_accuracy for run in runs]
        )
    summaries = {
        selector: tuple(summarise(run, target=target) for run in runs)
        for selector, runs in metrics.items()
    }
    reference = summaries[baseline]
    return Comparison(
        target,
        tuple(
            Entry(
                selector,
                runs,
                paired_difference(
                    [run.final_accuracy for run in runs],
                    [run.final_accuracy for run in reference],
                ),
                paired_difference(
                    [1 - r.seconds_to_target / b.seconds_to_target
                     for r, b in zip(runs, reference, strict=True)],
                    [0.0] * seeds,
                ),
            )
            for selector, runs in summaries.items()
        ),
    )  # fmt: skip


def _place(path: Path, selector: str, seed: int) -> Path:
    return path / selector / f"seed-{seed}"
