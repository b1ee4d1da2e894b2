"""How the figures of the claims look: one palette, little ink."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
SKY, BROWN, GREY, FAINT, SHADE = "#56B4E9", "#8C510A", "#777777", "#999999", "#dddddd"
CYCLE = (BLUE, ORANGE, GREEN, PINK, YELLOW)
POLICIES = (GREY, *CYCLE, SKY, BROWN)
"""Of groups of runs, the baseline first."""


def tidy(axes: "Axes", title: str, x: str, y: str) -> None:
    """Title that states the finding, plain labels, no box."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def label_ends(
    axes: "Axes", x: float, ends: Sequence[tuple[float, str, str]], *, apart: float
) -> None:
    """(y, label, colour) texts at x on a logarithmic axis, at least a factor `apart` apart."""
    last = 0.0
    for y, label, colour in sorted(ends):
        last = max(y, last * apart)
        axes.text(x, last, label, color=colour, fontsize=8, va="center")
