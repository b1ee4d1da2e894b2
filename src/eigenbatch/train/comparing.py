"""Compare selectors with our own trainer: same seeds, same budget, resumable run by run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eigenbatch.errors import RowError, RunError
from eigenbatch.runs.comparison import (
    Comparison,
    Progress,
    check_comparison,
    load_comparison,
    name_baseline,
    run_folder,
)
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.runs.reader import read_run
from eigenbatch.train.batches import check_selector, selector_named
from eigenbatch.train.progress import progress_bar
from eigenbatch.train.run import Run, load_run
from eigenbatch.train.trainer import train

if TYPE_CHECKING:
    from rich.console import Console


def compare_selectors(
    run: Run,
    selectors: Sequence[str],
    seeds: int,
    path: Path,
    *,
    target: float | None = None,
    progress: Progress = lambda selector, seed, accuracy: None,
    console: "Console | None" = None,
    accelerator: str = "auto",
) -> Comparison:
    """Train every selector with every seed, then compare.

    Runs are kept under `path`/SELECTOR/seed-K; finished ones are not run again, others are resumed.
    Seeds are the outer loop, so that an interrupted comparison has whole pairs.

    Raises:
        RunError: a model diverged, so that there is nothing to compare with; the other runs are
            finished first.
    """
    check_comparison(selectors, seeds, target)
    numbers = range(run.seed, run.seed + seeds)
    runs = {
        selector: replace(run, batches=replace(run.batches, selector=selector))
        for selector in selectors
    }
    for selector, settings in runs.items():
        settings.validate()
        if check_selector(selector) != "auto":  # it is made with the model
            selector_named(selector)
        for seed in numbers:
            _check_epochs(run, RunDirectory(run_folder(path, selector, seed)))
    diverged = []
    for seed in numbers:
        for selector, settings in runs.items():
            progress(selector, seed, None)
            folder = run_folder(path, selector, seed)
            try:
                train(
                    replace(settings, seed=seed),
                    folder,
                    resume=RunDirectory(folder).manifest.exists(),
                    watch=progress_bar(console, f"{selector}/seed-{seed}") if console else None,
                    accelerator=accelerator,
                    devices=1,
                )
            except RunError as reason:
                if not isinstance(reason.__cause__, RowError):
                    raise
                diverged.append(str(reason))
                continue
            name_baseline(folder, selectors[0])
            accuracy = read_run(folder).accuracy
            progress(selector, seed, None if accuracy is None else float(accuracy.value[-1]))
    if diverged:
        raise RunError(
            f"{len(diverged)} of {len(selectors) * seeds} runs cannot be compared, the others are "
            f"finished (eigenbatch report {path}): {'; '.join(diverged)}"
        )
    return load_comparison(selectors, list(numbers), path, target=target)


def _check_epochs(run: Run, directory: RunDirectory) -> None:
    """Raise if a run on disk has another length: resumed, its schedule would not be the same."""
    if not directory.manifest.exists():
        return
    found = load_run(directory).budget.epochs
    if found != run.budget.epochs:
        raise RunError(
            f"{directory.path} was begun with budget.epochs={found}, not {run.budget.epochs}: runs "
            "that are compared have the same schedule. Choose another --out"
        )
