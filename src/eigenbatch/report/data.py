"""What the page's script draws, as compact JSON that is safe inside a script element."""

import json
import math
from collections.abc import Sequence
from typing import Any

from eigenbatch.report.charts import Chart, Section
from eigenbatch.report.downsample import Curve, over_runs
from eigenbatch.report.groups import Group, Progress, progress_by_epoch, progress_by_time
from eigenbatch.report.paired import Pairing
from eigenbatch.report.runs import Heat, Run
from eigenbatch.report.verdict import measure_of, untrained_accuracy
from eigenbatch.runs.metrics import Floats

HANDFUL = 6
"""Runs that get a line each; of more, a group is drawn as a band."""


def chart_data(
    runs: Sequence[Run],
    names: Sequence[str],
    groups: Sequence[Group],
    pairings: Sequence[Pairing],
    sections: Sequence[Section],
) -> dict[str, Any]:
    """Everything the charts need, and which charts have something to show."""
    group_of = {index: number for number, group in enumerate(groups) for index in group.runs}
    members = [[runs[index] for index in group.runs] for group in groups]
    accuracy = {
        "epoch": [progress_by_epoch(one) for one in members],
        "seconds": [progress_by_time(one) for one in members],
    }
    shown = [
        chart
        for section in sections
        for chart in section.charts
        if _has_data(chart, runs, accuracy, pairings)
    ]
    bands = [_bands(one) if len(runs) > HANDFUL and len(one) > 1 else None for one in members]
    single = {metric for chart in shown if chart.kind == "band" for metric in chart.metrics}
    measure = measure_of(runs)
    return {
        "charts": [
            {
                "id": c.id,
                "kind": c.kind,
                "metrics": c.metrics,
                "axis": measure if c.kind == "accuracy" else c.axis,
                "log": c.log,
            }
            for c in shown
        ],
        "untrained": _rounded(untrained_accuracy(runs), 5),
        "groups": [group.name for group in groups],
        "bands": bands,
        "runs": [
            {
                "name": name,
                "group": group_of[index],
                "inside": run.inside,
                "curves": {
                    metric: _curve(curve)
                    for metric, curve in run.curves.items()
                    if bands[group_of[index]] is None or metric in single
                },
                "spectrum": _heat(run.spectrum),
            }
            for index, (run, name) in enumerate(zip(runs, names, strict=True))
        ],
        "accuracy": {
            along: [_progress(curve) for curve in curves] for along, curves in accuracy.items()
        },
        "paired": [_pairing(pairing) for pairing in pairings],
    }


def script_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever strings it holds."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _has_data(
    chart: Chart,
    runs: Sequence[Run],
    accuracy: dict[str, list[Progress | None]],
    pairings: Sequence[Pairing],
) -> bool:
    match chart.kind:
        case "accuracy":
            return any(curve is not None for curve in accuracy[chart.metrics[1]])
        case "paired":
            return bool(pairings)
        case "heat":
            return any(run.spectrum is not None for run in runs)
        case "lines" | "band":
            return any(chart.metrics[0] in run.curves for run in runs)


def _bands(runs: Sequence[Run]) -> dict[str, Any]:
    """The curves of a group's runs, condensed to one per metric."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.curves)
    return {
        metric: _curve(over_runs([run.curves[metric] for run in runs if metric in run.curves]))
        for metric in metrics
    }


def _curve(curve: Curve) -> dict[str, Any]:
    drawn: dict[str, Any] = {"x": _round(curve.x, 8), "y": _round(curve.middle)}
    if curve.reduced:
        drawn |= {"low": _round(curve.low), "high": _round(curve.high)}
    return drawn


def _heat(heat: Heat | None) -> dict[str, Any] | None:
    if heat is None:
        return None
    return {"x": _round(heat.step, 8), "z": [_round(row, 4) for row in heat.eigenvalues]}


def _progress(curve: Progress | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        "x": _round(curve.x),
        "mean": _round(curve.mean),
        "low": _round(curve.low),
        "high": _round(curve.high),
        "seeds": curve.seeds.tolist(),
    }


def _pairing(pairing: Pairing) -> dict[str, Any]:
    gain = pairing.gain
    return {
        "group": pairing.group,
        "baseline": pairing.baseline,
        "seeds": pairing.seeds,
        "gains": [_rounded(100 * value, 5) for value in pairing.gains],
        "mean": _rounded(100 * gain.mean, 5),
        "interval": [_rounded(100 * end, 5) for end in (gain.low, gain.high)]
        if gain.enough
        else None,
    }


def _round(values: Floats, digits: int = 5) -> list[float | None]:
    return [_rounded(value, digits) for value in values.tolist()]


def _rounded(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
