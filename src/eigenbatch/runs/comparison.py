"""Selectors against each other: same seeds, same budget, paired; resumable run by run."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from eigenbatch.errors import ArgumentTypeError, ParameterError, RunError
from eigenbatch.missing import require
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.runs.paired import PairedDifference, paired_difference
from eigenbatch.runs.reader import RunRecord, read_run
from eigenbatch.runs.recorder import Recorder
from eigenbatch.runs.summary import Summary, default_target, summarise

Train = Callable[[Any, int, Recorder], None]
Progress = Callable[[str, int, float | None], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One selector over all seeds, compared with the baseline (the first selector).

    Args:
        selector: its name.
        summaries: one per seed.
        accuracy_gain: final accuracy minus that of the baseline.
        time_saved: share of the baseline's time to the target that is saved: 0.15 is 15 % faster.

    Examples:
        >>> from eigenbatch import compare
        >>> def train(selector, seed, run):
        ...     run.log(1, knn=0.5 + 0.1 * (selector == "b") + 0.01 * seed)
        >>> entry = compare(train, ["a", "b"], seeds=3, path=tmp_path / "runs").entries[1]
        >>> entry.selector, round(entry.accuracy_gain.mean, 6), len(entry.summaries)
        ('b', 0.1, 3)
    """

    selector: str
    summaries: tuple[Summary, ...]
    accuracy_gain: PairedDifference
    time_saved: PairedDifference


@dataclass(frozen=True, slots=True)
class Comparison:
    """All selectors, and the accuracy their times are measured to.

    Args:
        target: that accuracy.
        entries: one per selector, the baseline first.

    Examples:
        >>> from eigenbatch import compare
        >>> def train(selector, seed, run):
        ...     run.log(1, knn=0.5 + 0.1 * (selector == "b") + 0.01 * seed)
        >>> print(compare(train, ["a", "b"], seeds=3, path=tmp_path / "runs"))
        a: 0.5100 (baseline)
        b: +0.1000 (95 % interval +0.1000 to +0.1000)
    """

    target: float
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        baseline = fmean(one.final_accuracy for one in self.entries[0].summaries)
        lines = [f"{self.entries[0].selector}: {baseline:.4f} (baseline)"]
        for entry in self.entries[1:]:
            gain = entry.accuracy_gain
            doubt = (
                f"95 % interval {gain.low:+.4f} to {gain.high:+.4f}"
                if gain.enough
                else f"{gain.pairs} seeds: too few for an interval"
            )
            lines.append(f"{entry.selector}: {gain.mean:+.4f} ({doubt})")
        return "\n".join(lines)


def compare(
    train: Train,
    selectors: Mapping[str, Any] | Sequence[str],
    seeds: int | Sequence[int],
    path: str | Path,
    *,
    target: float | None = None,
    progress: Progress = lambda selector, seed, accuracy: None,
) -> Comparison:
    """Train your own model with every selector and seed, then compare in pairs.

    Runs are kept under `path`/SELECTOR/seed-K. Finished ones are not run again; an unfinished one
    starts again. Seeds are the outer loop, so that an interrupted comparison has whole pairs.

    Args:
        train: `train(selector, seed, recorder)`, your own function. It must log an accuracy:
            `recorder.log(step, knn=...)`, or `mrr`, or `accuracy`.
        selectors: selectors by name; names alone are passed to `train` as they are. The first is
            the baseline. Every run gets a copy: the next run does not begin where this one ended.
        seeds: how many seeds (0, 1, ...), or the seeds themselves.
        path: the folder of the runs.
        target: accuracy that times are measured to; by default where the baseline has 90 % of what
            it gains over its untrained encoder.
        progress: called with None when a run begins and with its accuracy when it is done.

    Returns:
        Summaries of all runs, paired differences to the baseline, intervals and p-values.

    Examples:
        >>> from eigenbatch import compare
        >>> def train(selector, seed, run):
        ...     for step in range(1, 4):
        ...         run.log(step, epoch=step, loss=1 / step, knn=0.1 * step + 0.01 * seed)
        >>> result = compare(train, ["random", "greedy-64"], seeds=3, path=tmp_path / "runs")
        >>> result.entries[1].accuracy_gain.mean
        0.0
    """
    if not callable(train):
        raise ArgumentTypeError(f"train must be a function, got {type(train).__name__}")
    named = _named(selectors)
    numbers = _seeds(seeds)
    check_comparison(list(named), len(numbers), target)
    require("scipy")  # before hours of training
    path = Path(path).absolute()  # `train` may change the working directory
    first: RunRecord | None = None
    for seed in numbers:
        for name, selector in named.items():
            folder = run_folder(path, name, seed)
            known = read_if_finished(folder)
            if known is None or known.accuracy is None:
                progress(name, seed, None)
                set_aside(folder)
                with Recorder(folder, config={"selector": name, "seed": seed}) as recorder:
                    train(deepcopy(selector), seed, recorder)
                    recorder.finish()  # a run that was stopped early is compared as it is
            done = read_run(folder)
            if done.accuracy is None:
                raise RunError(
                    f"{folder} has no accuracy: call recorder.log(step, knn=...) in `train`"
                )
            first = first or done
            check_measure(done, first)
            name_baseline(folder, next(iter(named)))
            progress(name, seed, float(done.accuracy.value[-1]))
    return load_comparison(list(named), numbers, path, target=target)


def check_comparison(selectors: Sequence[str], seeds: int, target: float | None) -> None:
    """Raise unless a comparison can be made of this."""
    if seeds < 1:
        raise ParameterError(f"seeds must be at least 1, got {seeds}")
    if len(set(selectors)) != len(selectors) or len(selectors) < 2:
        raise ParameterError(
            f"give at least two different selectors, the first is the baseline: {selectors}"
        )
    if target is not None and not 0 < target < 1:
        raise ParameterError(f"target must be an accuracy between 0 and 1, got {target}")


def load_comparison(
    selectors: Sequence[str],
    seeds: Sequence[int],
    path: str | Path,
    *,
    target: float | None = None,
) -> Comparison:
    """The comparison of runs that are already on disk.

    Args:
        selectors: names, the baseline first.
        seeds: the seeds.
        path: the folder that `compare` was given.
        target: accuracy that times are measured to; None: as `compare` chooses it.

    Returns:
        What `compare` returned when the runs were made.

    Examples:
        >>> from eigenbatch import compare
        >>> from eigenbatch.runs import load_comparison
        >>> def train(selector, seed, run):
        ...     run.log(1, knn=0.5 + 0.1 * (selector == "b"))
        >>> made = compare(train, ["a", "b"], seeds=3, path=tmp_path / "runs")
        >>> str(load_comparison(["a", "b"], [0, 1, 2], tmp_path / "runs")) == str(made)
        True
    """
    runs = {
        selector: [_whole(run_folder(path, selector, seed)) for seed in seeds]
        for selector in selectors
    }
    baseline = selectors[0]
    for run in chain.from_iterable(runs.values()):
        check_measure(run, runs[baseline][0])
    if target is None:
        untargeted = [summarise(run) for run in runs[baseline]]
        target = default_target(
            [one.first_accuracy for one in untargeted], [one.final_accuracy for one in untargeted]
        )
    summaries = {
        selector: tuple(summarise(run, target=target) for run in found)
        for selector, found in runs.items()
    }
    reference = summaries[baseline]
    return Comparison(
        target,
        tuple(
            Entry(
                selector,
                found,
                paired_difference(
                    [one.final_accuracy for one in found],
                    [one.final_accuracy for one in reference],
                ),
                paired_difference(
                    [time_saved(a, b) for a, b in zip(found, reference, strict=True)],
                    [0.0] * len(seeds),
                ),
            )
            for selector, found in summaries.items()
        ),
    )


def check_measure(run: RunRecord, first: RunRecord) -> None:
    """Raise unless both runs are judged by the same metric."""
    if run.accuracy_name != first.accuracy_name:
        raise RunError(
            f"{run.folder} is judged by {run.accuracy_name!r}, {first.folder} by "
            f"{first.accuracy_name!r}: log the same accuracy in all runs, or compare in another "
            "folder"
        )


def name_baseline(folder: Path, baseline: str) -> None:
    """Write into a run what it is compared with, for the report."""
    directory = RunDirectory(folder)
    if directory.manifest.exists() and directory.read_manifest().get("baseline") != baseline:
        directory.update_manifest(baseline=baseline)


def time_saved(run: Summary, baseline: Summary) -> float:
    """Share of the baseline's time to the target that a run saves; NaN if either missed it."""
    needed, known = run.seconds_to_target, baseline.seconds_to_target
    return 1 - needed / known if math.isfinite(needed) and math.isfinite(known) else math.nan


def run_folder(path: str | Path, selector: str, seed: int) -> Path:
    """Where a comparison keeps one run."""
    return Path(path) / selector / f"seed-{seed}"


def read_if_finished(folder: Path) -> RunRecord | None:
    """The run, if it is finished and whole; raises if it finished but lost lines since."""
    if not folder.is_dir():
        return None
    run = read_run(folder)
    lost = [problem for problem in run.problems if "lost or changed" in problem]
    if lost:
        raise RunError(f"{folder}: {lost[0]}")
    return run if run.finished else None


def set_aside(folder: Path) -> None:
    """Rename the files of an interrupted run to NAME.interrupted, so that it can start again."""
    directory = RunDirectory(folder)
    for file in (directory.metrics, directory.manifest):
        if file.exists():
            file.replace(file.with_name(file.name + ".interrupted"))


def _whole(folder: Path) -> RunRecord:
    run = read_if_finished(folder)
    if run is None:
        raise RunError(f"{folder} is not finished: run the comparison again to complete it")
    return run


def _seeds(seeds: object) -> list[int]:
    """The seeds, from their number or as they are."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return list(range(seeds))
    if isinstance(seeds, Sequence) and all(type(one) is int for one in seeds):
        if len(set(seeds)) < len(seeds):
            raise ParameterError(f"a seed may be given once only, got {list(seeds)}")
        return list(seeds)
    raise ArgumentTypeError(f"seeds must be a whole number or a list of them, got {seeds!r}")


def _named(selectors: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    texts = isinstance(selectors, Mapping | Sequence) and not isinstance(selectors, str)
    if not texts or not all(isinstance(name, str) for name in selectors):
        raise ParameterError(
            f"selectors must be a list of names or a dict of selectors by name, got {selectors!r}"
        )
    for name in selectors:
        if name in ("", "..") or Path(name).name != name:
            raise ParameterError(f"a selector's name is that of a folder of runs, got {name!r}")
    if isinstance(selectors, Mapping):
        return dict(selectors)
    if len(set(selectors)) != len(selectors):
        raise ParameterError(f"selectors must be different, got {list(selectors)}")
    return {name: name for name in selectors}
