"""Run directories as records: what was set, what happened, and what is wrong with the files."""

import json
import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenbatch.report.charts import CURVES, EVALUATIONS
from eigenbatch.report.downsample import Curve, bucket_starts, downsample
from eigenbatch.runs.directory import read_object
from eigenbatch.runs.findings import Episode, episodes
from eigenbatch.runs.metrics import Floats, Series
from eigenbatch.runs.reader import RunRecord, find_runs, read_run

FILES = ("manifest.json", "metrics.jsonl", "verdict.json", "figure.png")
FORKS = "fork" in multiprocessing.get_all_start_methods() and hasattr(os, "sched_getaffinity")
PARALLEL_BYTES = 50_000_000
PNG = b"\x89PNG\r\n\x1a\n"
MEASURES = {"knn": "k-NN accuracy", "mrr": "mean reciprocal rank", "accuracy": "accuracy"}
SPECTRUM_COLUMNS = 150
SPECTRUM_ROWS = 32

Stamp = tuple[tuple[int, int] | None, ...]  # (time, size) of each of FILES


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """Leading eigenvalues over steps; NaN where a reading had fewer."""

    step: Floats  # (t,)
    eigenvalues: Floats  # (k, t)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training run, condensed to what a page shows."""

    folder: Path
    settings: dict[str, Any] | None  # by dotted name; None: no readable manifest
    origin: dict[str, Any]  # device, commit, versions, machine
    problems: tuple[str, ...]
    finished: bool
    stopped: str | None  # why it ended early
    end: tuple[float, float, float]  # step, epoch, seconds
    curves: dict[str, Curve]
    own: tuple[str, ...]  # names of the user's own metrics
    accuracy: Series | None  # what the run is judged by
    untrained: float  # accuracy before the first step; NaN if it is unknown
    measure: str  # name of the accuracy, for people; "" without one
    evaluations: dict[str, Series]
    inside: dict[str, tuple[int, int]]  # band -> readings inside it, all readings
    spectrum: Heat | None
    findings: tuple[Episode, ...]

    @property
    def rows(self) -> int:
        """Length of the longest series, before downsampling."""
        return max((curve.rows for curve in self.curves.values()), default=0)

    def final(self, name: str) -> float:
        """The last value of an evaluation; NaN if there is none."""
        series = self.evaluations.get(name)
        return float(series.value[-1]) if series else math.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """One claim of the paper, measured again."""

    folder: Path
    verdict: dict[str, str]
    figure: bytes | None  # a PNG
    problems: tuple[str, ...]


def find_folders(paths: Sequence[Path]) -> list[Path]:
    """Every run or claim directory at or below the paths, each once, in order."""
    return find_runs(paths, markers=("verdict.json",))


def stamp(folder: Path) -> Stamp:
    """Changes whenever a file of the run does."""
    return tuple(_stamp(folder / name) for name in FILES)


_loaded: dict[Path, tuple[Stamp, Run | Claim]] = {}


def load_all(folders: Sequence[Path]) -> list[Run | Claim]:
    """Every folder; one whose files have not changed since the last call is not read again."""
    stamps = {folder: stamp(folder) for folder in folders}
    changed = [one for one in stamps if one not in _loaded or _loaded[one][0] != stamps[one]]
    sizes = (file[1] for folder in changed for file in stamps[folder] if file is not None)
    for folder, content in zip(changed, _read_all(changed, sum(sizes)), strict=True):
        _loaded[folder] = stamps[folder], content
    return [_loaded[folder][1] for folder in folders]


def _read_all(folders: Sequence[Path], size: int) -> list[Run | Claim]:
    """Read folders, large ones in several processes where forking is safe: one thread, no torch."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    workers = min(len(folders), len(os.sched_getaffinity(0))) if FORKS and alone else 1
    if workers < 2 or size < PARALLEL_BYTES:
        return [load(folder) for folder in folders]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return pool.map(load, folders, chunksize=1)


def load(folder: Path) -> Run | Claim:
    """Read one folder."""
    if (folder / "verdict.json").exists():
        return _load_claim(folder, {})
    manifest, _ = read_object(folder / "manifest.json")
    settings = manifest.get("config")
    if isinstance(settings, dict) and "claim" in settings:
        return _load_claim(folder, settings)
    return _load_run(read_run(folder))


def _load_run(record: RunRecord) -> Run:
    series = dict(record.series)
    share = _selection_percent(series)
    if share is not None:
        series["selection_percent"] = share
    own = tuple(name for name in series if not _ours(name))
    return Run(
        folder=record.folder,
        settings=record.settings,
        origin=record.origin,
        problems=(*record.problems, *([f"stopped: {record.stopped}"] if record.stopped else [])),
        finished=record.finished,
        stopped=record.stopped,
        end=record.metrics.end,
        curves={
            name: downsample(series[name].step, series[name].value)
            for name in (*CURVES, *own)
            if name in series
        },
        own=own,
        accuracy=record.accuracy,
        untrained=record.untrained,
        measure=MEASURES.get(record.accuracy_name or "", ""),
        evaluations={name: series[name] for name in EVALUATIONS if name in series},
        inside={
            band: counts for band in ("certified", "paper") if (counts := _inside(series, band))
        },
        spectrum=_heat(record.metrics.records["eigenvalues"]),
        findings=episodes(record.metrics.records["findings"]),
    )


def _ours(name: str) -> bool:
    """Whether a number has its own place on the page, or is only for other numbers."""
    return (
        name in CURVES
        or name in EVALUATIONS
        or name in ("finished", "step_seconds", "waited_seconds", "cpu_seconds")
        or name.startswith(("spectral/", "sampler/", "transfer_", "linear", "selection_percent"))
    )


def _selection_percent(series: dict[str, Series]) -> Series | None:
    """Time spent selecting so far, in percent of the time of the run so far."""
    selecting = series.get("sampler/seconds")
    if selecting is None:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100 * np.cumsum(selecting.value) / selecting.seconds
    kept = np.isfinite(share)
    if not kept.any():
        return None
    return Series(selecting.step[kept], selecting.epoch[kept], selecting.seconds[kept], share[kept])


def _inside(series: dict[str, Series], band: str) -> tuple[int, int] | None:
    names = (f"spectral/{band}_lower", "spectral/gradient", f"spectral/{band}_upper")
    if not all(name in series for name in names):
        return None
    values = [dict(zip(series[n].step, series[n].value, strict=True)) for n in names]
    steps = set.intersection(*(set(value) for value in values))
    rounding = 1 + 1e-6
    inside = sum(
        lower[step] <= measured[step] * rounding and measured[step] <= upper[step] * rounding
        for lower, measured, upper in [values]
        for step in steps
    )
    return int(inside), len(steps)


def _heat(readings: Sequence[tuple[float, Any]]) -> Heat | None:
    rows = [(step, _eigenvalues(value)) for step, value in readings]
    rows = sorted((row for row in rows if np.isfinite(row[1]).any()), key=lambda row: row[0])
    if not rows:
        return None
    step = np.array([row[0] for row in rows])
    values = np.stack([row[1] for row in rows], axis=1)  # (SPECTRUM_ROWS, t)
    values = values[np.isfinite(values).any(axis=1)]
    if len(step) > SPECTRUM_COLUMNS:
        starts = bucket_starts(step, SPECTRUM_COLUMNS)
        present = np.add.reduceat(np.isfinite(values), starts, axis=1, dtype=float)
        total = np.add.reduceat(np.where(np.isfinite(values), values, 0.0), starts, axis=1)
        values = np.divide(total, present, out=np.full_like(total, np.nan), where=present > 0)
        step = np.add.reduceat(step, starts) / np.diff(np.append(starts, len(step)))
    return Heat(step, values)


def _eigenvalues(value: Any) -> Floats:
    """The first SPECTRUM_ROWS of a list of numbers; NaN for what is missing or not positive."""
    row = np.full(SPECTRUM_ROWS, np.nan)
    for index, number in enumerate(value[:SPECTRUM_ROWS] if isinstance(value, list) else []):
        if type(number) in (int, float) and 0 < number < math.inf:
            row[index] = min(number, 1e300)
    return row


VERDICT = (
    "claim", "section", "statement", "printed", "criterion", "outcome", "measured", "note", "scale",
    "seeds", "size",
)  # fmt: skip


def _load_claim(folder: Path, settings: dict[str, Any]) -> Claim:
    if (folder / "verdict.json").exists():
        verdict, problem = read_object(folder / "verdict.json")
        problems = [problem] if problem else []
    else:
        verdict, problems = {"outcome": "not finished"}, []
    figure = folder / "figure.png"
    content = figure.read_bytes() if figure.is_file() else None
    if content is not None and not content.startswith(PNG):
        content = None
        problems.append("figure.png is not a PNG image")
    text = dict.fromkeys(VERDICT, "") | {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (settings | verdict).items()
    }
    return Claim(folder=folder, verdict=text, figure=content, problems=tuple(problems))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
