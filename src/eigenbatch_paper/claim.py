"""What a claim of the paper is: work in chunks, a criterion fixed beforehand, a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from eigenbatch_paper.tables import Table
from eigenbatch_paper.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Row = dict[str, Any]  # plain JSON values
DATA_SETS = ("imagenet100", "imagenet1k", "cifar10", "pets", "multi30k", "flickr8k", "minilm",
             "stsb", "python", "messages", "packages")  # fmt: skip
"""What claims may need on disk; at scale "small" Tiny-ImageNet-100 stands for imagenet100."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of work that is done as a whole or not at all; a claim is resumed chunk by chunk.

    Two claims that list an equal chunk with the same `compute` share its rows, unless one is timed.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain JSON values


@dataclass(frozen=True, slots=True)
class Place:
    """What a chunk may need from outside.

    runs: where training runs are kept.
    data: folders by the name of the data set; "" is for all that are not named.
    """

    runs: Path
    data: Mapping[str, Path] = field(default_factory=dict)

    def folder(self, name: str) -> Path | None:
        """Where a data set lies, if the user said so."""
        return self.data.get(name, self.data.get(""))


Compute = Callable[[Chunk, Place], list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper that a machine can check.

    compute: rows of one chunk; a module-level function, called in a worker process with one thread.
    judge: applies `criterion` to all rows; fixed before the run.
    draw: one figure that can be understood without the paper.
    table: the paper's own table, where it has one.
    needs: names of the data sets that must be on disk.
    trains: its chunks are training runs, whose rows say which version of the trainer made them.
    timed: compares times, so that only runs that were made for it count, not those of other claims.
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
    needs: Callable[[Scale], frozenset[str]] = lambda scale: frozenset()
    table: Callable[[list[Row]], Table] | None = None
    timed: bool = False
    trains: bool = False

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
