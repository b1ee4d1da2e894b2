"""Tables with the rows and columns of the paper's, the printed figure beside ours."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

NONE = "no value"  # some run has none, e.g. because it begins above the target
Cell = tuple[str, str]  # ours, and what is printed


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the paper.

    columns: the heading of the first column, then of the others.
    rows: the name of a row and its cells.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def markdown(self) -> str:
        """A Markdown table; the printed figure stands in brackets."""
        lines = [
            f"*{self.title}* In brackets: printed.",
            "",
            "| " + " | ".join(self.columns) + " |",
            "|" + " --- |" * len(self.columns),
        ]
        for name, cells in self.rows:
            texts = [f"{ours} ({printed})" if printed else ours for ours, printed in cells]
            lines.append("| " + " | ".join([name, *texts]) + " |")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The same as CSV, with a column of printed figures after each of ours."""
        first, *others = self.columns
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([first, *(text for name in others for text in (name, f"{name}, printed"))])
        for name, cells in self.rows:
            writer.writerow([name, *(text for cell in cells for text in cell)])
        return out.getvalue()


def mean_sem(
    values: Iterable[float], *, digits: int = 1, scale: float = 1.0, unit: str = ""
) -> str:
    """Mean ± standard error over seeds; without an error if there is one seed only."""
    found = [scale * value for value in values]
    if not all(math.isfinite(value) for value in found):
        return NONE
    text = f"{fmean(found):.{digits}f}"
    if len(found) > 1:
        text += f" ± {stdev(found) / math.sqrt(len(found)):.{digits}f}"
    return f"{text} {unit}".rstrip()


def share(value: float) -> str:
    """A relative saving, e.g. "+15 %"."""
    return f"{100 * value:+.0f} %" if math.isfinite(value) else NONE
