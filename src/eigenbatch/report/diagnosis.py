"""The page of `eigenbatch diagnose`: findings first, two charts, then every table."""

from collections.abc import Mapping, Sequence
from typing import Any

from eigenbatch.report.environment import render_template

SPECTRUM = {
    "id": "spectrum",
    "title": "Spectrum",
    "caption": "Share of each direction, the strongest first. Dotted: all directions alike. A "
    "steep start means that a few directions carry the embeddings.",
}
SIMILARITIES = {
    "id": "similarities",
    "title": "Similarities",
    "caption": "Cosines of positive and of negative pairs, each as a share of its kind. The less "
    "they overlap, the easier the task; a lump of negatives at 1 means duplicates.",
}


def render_diagnosis(
    name: str,
    findings: Sequence[Mapping[str, str]],
    sections: Sequence[Any],
    numbers: Mapping[str, float],
    eigenvalues: Sequence[float],
    similarities: Mapping[str, Any] | None,
) -> bytes:
    """The page as UTF-8.

    Args:
        name: of the files that were read.
        findings: name, severity, evidence and advice of each.
        sections: tables with a title and lines of name, value and meaning.
        numbers: for the JSON button, as `Reading.scalars()` names them.
        eigenvalues: shares of all directions, descending.
        similarities: edges of bins, counts of positive and negative cosines; None without pairs.
    """
    charts = [SPECTRUM] if similarities is None else [SPECTRUM, SIMILARITIES]
    kinds = {"spectrum": "share", "similarities": "share of pairs"}
    data = {
        "charts": [
            {"id": one["id"], "kind": one["id"], "metrics": [], "axis": kinds[one["id"]],
             "log": one["id"] == "spectrum"}
            for one in charts
        ],
        "runs": [], "groups": [], "bands": [], "untrained": None,
        "numbers": dict(numbers),
        "findings": [dict(one) for one in findings],
        "eigenvalues": list(eigenvalues),
        "similarities": None if similarities is None else dict(similarities),
    }  # fmt: skip
    return render_template(
        "diagnosis.html", data, name=name, findings=findings, charts=charts, sections=sections
    )
