"""Everything a second moment says about a cloud of unit rows, each number declared once.

Numbers of a record, each declared once: its meaning, and who shows it.

Scalars, tables and documents are made from these declarations.

Everything a second moment says about a cloud of unit rows, each number under its own name.

`Moments` are enough: they add up across processes and across batches, and so do the readings made
from them. Fewer rows than dimensions are smaller than their moments and give the same numbers.

How embeddings use their coordinates: two numbers that a spectrum cannot show.

A spectrum does not change under rotation, but two common faults are faults of single coordinates:
a ReLU as the last layer leaves no negative entry, and an unscaled feature fills one coordinate.
"""

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from eigenbatch.checks import check_type, real
from eigenbatch.core.contrast import accumulated
from eigenbatch.core.spectrum import (
    Moments,
    Spectrum,
    accumulated_rows,
    check_rows_or_moments,
    gap_of_trace,
    moments,
    smaller_gram,
    spectrum,
    spectrum_of,
)
from eigenbatch.errors import ShapeError

T = TypeVar("T", bound=type)


class Declared(NamedTuple):
    """What is known of a number.

    meaning: in words.
    title: in small tables; empty: not shown there.
    logged: whether loggers send it without being asked for all.
    """

    name: str
    meaning: str
    title: str = ""
    logged: bool = False


def number(meaning: str, *, title: str = "", logged: bool = False, **options: Any) -> Any:
    """A field of a dataclass that is logged as a scalar; options as of `dataclasses.field`."""
    return field(metadata={"declared": Declared("", meaning, title, logged)}, **options)


def note(meaning: str, **options: Any) -> Any:
    """A field that is no scalar: a text, a record, or a number for rules only."""
    return field(metadata={"meaning": meaning}, **options)


class derived(property):  # noqa: N801  (a decorator)
    """A property that is logged as a scalar; its docstring is its meaning."""


def declared(record: type) -> Iterator[Declared]:
    """The numbers of a class, in their order."""
    for one in fields(record):
        if found := one.metadata.get("declared"):
            yield found._replace(name=one.name)
    for kind in record.__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, derived):
                yield Declared(name, (member.__doc__ or "").partition("\n")[0].rstrip("."))


def known_numbers(record: Any) -> dict[str, float]:
    """Its numbers by name; those that are None, NaN or infinite are left out."""
    values = ((one.name, getattr(record, one.name)) for one in declared(type(record)))
    return {
        name: float(value) for name, value in values if value is not None and math.isfinite(value)
    }


def documented(record: T) -> T:
    """List the fields of a dataclass in its docstring, before the examples."""
    text, mark, examples = (record.__doc__ or "").partition("    Examples:\n")
    lines = "\n".join(f"        {one.name}: {_meaning(one)}." for one in fields(record))
    record.__doc__ = f"{text}    Args:\n{lines}\n\n{mark}{examples}"
    return record


def _meaning(one: "Field[Any]") -> str:
    found = one.metadata.get("declared")
    return found.meaning if found else str(one.metadata["meaning"])


LEADING = 32  # eigenvalues kept to be looked at
NAN = math.nan


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Ranks, gaps and the mean direction of unit rows.

    Examples:
        >>> import torch
        >>> from eigenbatch.core import cloud_of
        >>> cloud = cloud_of(torch.eye(4))
        >>> cloud.count, cloud.dimension, cloud.attainable_rank, round(cloud.sigma_hat, 6)
        (4, 4, 4, 0.25)
    """

    count: int = note("rows n behind the spectrum", default=0)
    dimension: int = note("d", default=0)
    sigma_hat: float = number(
        "top eigenvalue of the second moment, between 1/d and 1", logged=True, default=NAN
    )
    mean_sqnorm: float = note("||zbar||^2, what all rows have in common", default=NAN)
    participation_ratio: float = number(
        "the paper's R_eff", title="R_eff", logged=True, default=NAN
    )
    participation_ratio_unbiased: float = number(
        "R_eff without the bias of a small sample", default=NAN
    )
    entropy_rank: float = number(
        "exponential of the entropy of the eigenvalues (RankMe)", default=NAN
    )
    stable_rank: float = number("1 / sigma_hat", default=NAN)
    centred_entropy_rank: float = number(
        "entropy rank of the centred rows; 0 if all rows are equal", logged=True, default=NAN
    )
    isotropy_gap: float = number("distance of the second moment from I/d, in percent", default=NAN)
    isotropy_gap_unbiased: float = number(
        "isotropy gap without the bias of a small sample", default=NAN
    )
    leading: tuple[float, ...] = note("the largest eigenvalues, at most 32, descending", default=())

    @derived
    def attainable_rank(self) -> int:
        """min(n, d): the largest value any uncentred rank can take."""
        return min(self.count, self.dimension)

    @derived
    def attainable_centred_rank(self) -> int:
        """min(n - 1, d): one direction goes with the mean."""
        return min(self.count - 1, self.dimension)

    @derived
    def mean_share(self) -> float:
        """||zbar||^2 / sigma-hat in [0, 1]: how much of the top eigenvalue is just the mean."""
        return self.mean_sqnorm / self.sigma_hat


@torch.no_grad()
def cloud_of(
    z_or_moments: Tensor | Moments,
    cloud_spectrum: Spectrum | None = None,
    *,
    positive_squares: float | None = None,
    gram: Tensor | None = None,
) -> Cloud:
    """The summary of the rows of z (n, d), put on the sphere, or of all rows behind moments.

    The unbiased numbers ask for independent rows. Two views of a sample are not: where every row
    has one positive among the others, give `positive_squares`, and those pairs are left out. (At
    cosine 0.75, n = 256, d = 1024 they would add 150 % of gap.)

    Args:
        z_or_moments: rows (n, d), or moments of unit rows.
        cloud_spectrum: `spectrum(z_or_moments)`, for callers that have it.
        positive_squares: the sum of `<z_i, z_i+>^2` over rows.
        gram: the smaller Gram matrix of fewer rows than dimensions, for callers that have it.

    Returns:
        Ranks, gaps and the mean direction.

    Examples:
        >>> import torch
        >>> from eigenbatch.core import cloud_of
        >>> z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> cloud_of(z).mean_share < cloud_of(z + 2).mean_share  # a shared vector is added
        True
    """
    check_rows_or_moments(z_or_moments)
    check_type(cloud_spectrum, (Spectrum, type(None)), "cloud_spectrum")
    if positive_squares is not None:
        real(positive_squares, "positive_squares")
    check_type(gram, (Tensor, type(None)), "gram")
    facts = compact(z_or_moments) if isinstance(z_or_moments, Tensor) else z_or_moments
    if isinstance(facts, Moments):
        n, d, gram = facts.count, len(facts.sum), facts.second
        mean_sqnorm = facts.mean.square().sum().item()
        centred = n * facts.covariance  # (d, d)
    else:
        n, d = facts.shape
        if gram is None:
            gram = smaller_gram(accumulated_rows(facts, normalize=True))  # (n, n)
        mean_sqnorm = gram.mean().item()
        middle = gram - gram.mean(0)
        centred = middle - middle.mean(1, keepdim=True)  # (n, n) Gram matrix of the centred rows
    if n < 2:
        raise ShapeError(f"a cloud needs at least 2 rows, got {n}")
    values = spectrum(facts) if cloud_spectrum is None else cloud_spectrum
    # Mean of <z_i, z_j>^2 over unrelated i != j: tr(Sigma^2) of the population behind the sample.
    squares = gram.square().sum().item()
    pairs = n * (n - 1) - (0 if positive_squares is None else n)
    if pairs == 0:
        raise ShapeError(f"a cloud of positive pairs needs at least 3 rows, got {n}")
    off_diagonal = max(0.0, squares - n - (positive_squares or 0.0)) / pairs
    varies = gram.trace().item() / n - mean_sqnorm > (n + d) * torch.finfo(gram.dtype).eps
    return Cloud(
        count=n,
        dimension=d,
        sigma_hat=values.top,
        mean_sqnorm=mean_sqnorm,
        participation_ratio=values.participation_ratio,
        participation_ratio_unbiased=math.inf if off_diagonal == 0 else 1 / off_diagonal,
        entropy_rank=values.entropy_rank,
        stable_rank=values.stable_rank,
        centred_entropy_rank=_entropy_rank(centred) if varies else 0.0,
        isotropy_gap=values.isotropy_gap,
        isotropy_gap_unbiased=gap_of_trace(d, off_diagonal),
        leading=tuple(values.eigenvalues[:LEADING].tolist()),
    )


def _entropy_rank(gram: Tensor) -> float:
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    return spectrum_of(values, count=len(values), dimension=len(values)).entropy_rank


def compact(z: Tensor) -> Tensor | Moments:
    """What a cloud is cheapest made from: the rows while n < d, else their moments."""
    return z if z.ndim == 2 and z.shape[0] < z.shape[1] else moments(z)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the coordinates of unit rows look like."""

    dominance: float  # d max_k E[z_k^2]: 1 when all coordinates are used alike, d for a single one
    negative_share: float  # of all entries; about 0.5 for centred embeddings, 0 after a ReLU

    @classmethod
    def from_sums(cls, sums: Tensor) -> Self:
        """The axes behind `axis_sums`, which add up over processes."""
        rows, negative = sums[0].item(), sums[1].item()
        squares = sums[2:]  # (d,)
        d = len(squares)
        return cls(
            dominance=d * squares.max().item() / rows,
            negative_share=negative / (rows * d),
        )


def random_dominance(dimension: int, sigma: float) -> float:
    """Dominance that a leading direction of strength sigma reaches by chance, at the 1 % level.

    A random unit vector u in d dimensions has u_k^2 > q with a probability of at most
    (1 - q)^((d - 1) / 2), so that all d of them stay below q = 1 - (0.01 / d)^(2 / (d - 1)) in 99
    of 100 cases. If the rows vary along u only, E[z_k^2] is about sigma u_k^2.
    """
    if dimension < 2:
        return 1.0
    largest: float = 1 - (0.01 / dimension) ** (2 / (dimension - 1))
    return dimension * sigma * largest


@torch.no_grad()
def axis_sums(rows: Tensor) -> Tensor:
    """(2 + d,): number of rows, negative entries, and the sum of z_k^2 for every coordinate k."""
    head = torch.stack([rows.new_tensor(len(rows)), (rows < 0).sum()])
    return torch.cat([accumulated(head), accumulated(rows.square().sum(0))])
