"""One self-contained HTML page about training runs and claims."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenbatch.errors import ParameterError, RunError
from eigenbatch.report.charts import SECTIONS, own_sections
from eigenbatch.report.data import HANDFUL, chart_data
from eigenbatch.report.downsample import BUCKETS
from eigenbatch.report.environment import render_template
from eigenbatch.report.groups import differing, group, names
from eigenbatch.report.paired import pairings
from eigenbatch.report.runs import Claim, Run, find_folders, load_all
from eigenbatch.report.verdict import verdict, worst
from eigenbatch.runs.directory import write_atomically
from eigenbatch.runs.findings import SEVERITIES, Episode
from eigenbatch.runs.summary import TARGET_SHARE

OURS = b"<title>eigenbatch"  # near the beginning of every page
COLOURS = 7  # --series-0 and on in page.css
DASHES = 5  # DASHES in page.js
FINALS = {
    "knn": "k-NN",
    "mrr": "MRR",
    "recall_at_1": "recall at 1",
    "accuracy": "accuracy",
    "linear": "linear",
    "linear_5_labels": "linear, 5 labels",
}
"""Evaluations in the overview, those that some run has."""
OUTCOMES = {
    "reproduced": "good",
    "holds under stated conditions": "partly",
    "inconclusive": "open",
    "does not reproduce": "bad",
}


def build(paths: Sequence[Path], out: Path) -> Path:
    """Write one self-contained page about every run and claim at or below the paths.

    Args:
        paths: run directories, or folders that hold some.
        out: the page, a file named *.html; an earlier page of ours is replaced, no other file.

    Returns:
        `out`.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.report.build import build
        >>> with Recorder(tmp_path / "run") as run:
        ...     run.log(1, loss=0.5, knn=0.9)
        >>> build([tmp_path], tmp_path / "page.html").name
        'page.html'
    """
    folders = find_folders(paths)
    if not folders:
        places = ", ".join(str(path) for path in paths)
        raise RunError(f"no run in {places}: a run directory holds metrics.jsonl")
    check_page(out)
    page = render(folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    return out


def check_page(out: Path) -> None:
    """Raise unless the name is that of a page: no other file is ever replaced by one."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ParameterError(f"the page must be named *.html, got {str(out)!r}")
    if out.is_file() and out.stat().st_size:
        with out.open("rb") as file:
            if OURS not in file.read(2048):
                raise ParameterError(f"{out} is not a page of eigenbatch: choose another name")


def render(folders: Sequence[Path], *, version: str = "", interval: float = 0) -> bytes:
    """The page as UTF-8. With an `interval` it asks for a newer `version` every so many seconds."""
    loaded = load_all(folders)
    runs = [one for one in loaded if isinstance(one, Run)]
    claims = [one for one in loaded if isinstance(one, Claim)]
    run_names = names([run.folder for run in runs])
    groups = group(runs, run_names)
    paired = pairings(runs, groups)
    own = own_sections({name for run in runs for name in run.own})
    wanted = (*SECTIONS, *own) if runs else ()
    rows = [_row(run, name) for run, name in zip(runs, run_names, strict=True)]
    finals = {key: title for key, title in FINALS.items() if any(key in row.finals for row in rows)}
    data = chart_data(runs, run_names, groups, paired, wanted)
    data["table"] = _table(rows, differing(runs), finals)
    drawn = {chart["id"] for chart in data["charts"]}
    sections = [one for one in wanted if any(chart.id in drawn for chart in one.charts)]
    return render_template(
        "page.html",
        data,
        live=bool(interval),
        drawn=drawn,
        sections=sections,
        left_out=[one for one in wanted if one not in sections],
        rows=rows,
        finals=finals,
        findings=_findings(runs, run_names),
        groups=groups,
        group_of={index: number for number, one in enumerate(groups) for index in one.runs},
        differing=differing(runs),
        shared=_shared(runs),
        pairings=paired,
        verdict=verdict(runs, groups, paired),
        target=TARGET_SHARE,
        timelines=_timelines(runs, run_names),
        claims=claims,
        outcomes=OUTCOMES,
        buckets=BUCKETS,
        handful=HANDFUL,
        reduced=sum(any(curve.reduced for curve in run.curves.values()) for run in runs),
        version=version,
        interval=interval,
        colours=COLOURS,
        dashes=DASHES,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in the overview."""

    name: str
    state: str
    problems: tuple[str, ...]
    settings: dict[str, Any]
    finals: dict[str, float]
    epochs: float
    seconds: float
    worst: Episode | None  # the most severe finding, the earliest of several


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The findings of a run, one lane for each name, along the steps of the longest run."""

    name: str
    worst: str
    lanes: dict[str, list[Episode]]
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A warning with the runs that had it; evidence and advice are those of its first run."""

    episode: Episode
    runs: tuple[str, ...]


def _row(run: Run, name: str) -> Row:
    if run.settings is None and any("manifest" in problem for problem in run.problems):
        state = "damaged"
    elif run.stopped and not run.finished:
        state = "stopped"
    elif not run.curves and not run.evaluations:
        state = "not finite" if run.end[0] > 0 else "empty"  # the last line has a step, too
    else:
        state = "finished" if run.finished else "unfinished"
    return Row(
        name=name,
        state=state,
        problems=run.problems,
        settings=run.settings or {},
        finals={metric: run.final(metric) for metric in run.evaluations},
        epochs=run.end[1],
        seconds=run.end[2],
        worst=worst(run.findings),
    )


def _timelines(runs: Sequence[Run], run_names: Sequence[str]) -> list[Timeline]:
    """The most severe first."""
    end = max((run.end[0] for run in runs if run.findings), default=0.0)
    timelines = []
    for run, name in zip(runs, run_names, strict=True):
        lanes: dict[str, list[Episode]] = {}
        for episode in run.findings:
            lanes.setdefault(episode.name, []).append(episode)
        if lanes:
            worst = max((one.severity for one in run.findings), key=SEVERITIES.index)
            timelines.append(Timeline(name=name, worst=worst, lanes=lanes, end=max(end, 1.0)))
    return sorted(timelines, key=lambda line: -SEVERITIES.index(line.worst))


def _findings(runs: Sequence[Run], run_names: Sequence[str]) -> list[Finding]:
    """Findings of severity warning or higher by name, the most severe and the earliest first."""
    found: dict[str, list[tuple[Episode, str]]] = {}
    for run, run_name in zip(runs, run_names, strict=True):
        for name in dict.fromkeys(one.name for one in run.findings if one.severity != "info"):
            episode = worst([one for one in run.findings if one.name == name])
            assert episode is not None
            found.setdefault(name, []).append((episode, run_name))
    summed = [
        Finding(
            episode=max(all_of, key=lambda one: SEVERITIES.index(one[0].severity))[0],
            runs=tuple(run_name for _, run_name in all_of),
        )
        for all_of in found.values()
    ]
    return sorted(
        summed, key=lambda one: (-SEVERITIES.index(one.episode.severity), one.episode.first)
    )


def _table(rows: Sequence[Row], settings: Sequence[str], finals: dict[str, str]) -> dict[str, Any]:
    """The overview for a spreadsheet."""
    columns = ["run", *settings, "seed", *finals, "epochs", "seconds", "worst_finding", "state"]
    return {
        "columns": columns,
        "rows": [
            [
                row.name,
                *(row.settings.get(key) for key in (*settings, "seed")),
                *(_finite(row.finals.get(key, math.nan)) for key in (*finals,)),
                _finite(row.epochs),
                _finite(row.seconds),
                row.worst.name if row.worst else None,
                row.state,
            ]
            for row in rows
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shared(runs: Sequence[Run]) -> dict[str, Any]:
    """Settings and origins that are the same in all readable runs."""
    known = [run.settings | run.origin for run in runs if run.settings is not None]
    return {
        key: value
        for key, value in (known[0] if known else {}).items()
        if all(one.get(key) == value for one in known)
    }
