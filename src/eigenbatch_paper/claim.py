"""What a claim of the paper is: work in chunks, a criterion fixed beforehand, a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Outcome = Literal["reproduced", "holds under stated conditions", "does not reproduce"]
Row = dict[str, Any]  # plain JSON values


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of work that is done as a whole or not at all; a claim is resumed chunk by chunk.

    Two claims that list an equal chunk with the same `compute` share its rows.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain JSON values


@dataclass(frozen=True, slots=True)
class Place:
    """What a chunk may need from outside: where training runs are kept, where images lie."""

    runs: Path
    data_dir: Path | None = None


Compute = Callable[[Chunk, Place], list[Row]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rows say about the claim."""

    outcome: Outcome
    measured: str  # the figure beside the printed one
    note: str = ""  # under which conditions, or the likely reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper that a machine can check.

    compute: rows of one chunk; a module-level function, called in a worker process with one thread.
    judge: applies `criterion` to all rows; fixed before the run.
    draw: one figure that can be understood without the paper.
    """

    name: str
    section: str
    statement: str
    printed: str
    criterion: str
    size: Mapping[Scale, str]
    minutes: Mapping[Scale, float]  # on two cores
    chunks: Callable[[Scale], Sequence[Chunk]]
    compute: Compute
    judge: Callable[[list[Row]], Verdict]
    draw: Callable[[list[Row], "Figure"], None]
    needs_images: bool = False

    def record(self, verdict: Verdict, scale: Scale, seeds: int) -> dict[str, Any]:
        """The verdict with all that a reader needs to weigh it, as plain JSON."""
        return {
            "claim": self.name,
            "section": self.section,
            "statement": self.statement,
            "printed": self.printed,
            "criterion": self.criterion,
            "scale": scale,
            "size": self.size[scale],
            "seeds": seeds,
        } | asdict(verdict)
