"""Second moments of unit rows, their spectra, and whitening.

Additive second moments: what a spectrum needs to know of a batch, mergeable across ranks.

Spectra of embedding clouds and every effective rank under its own name.

The paper's R_eff is the participation ratio 1 / tr(Sigma-hat^2) of the uncentred, trace-one second
moment; its table "RankMe" uses the entropy form. They differ by a factor on real data, so neither
is ever called just "effective rank" here.

In-batch whitening (section "Diversity manipulation"): z -> (Sigma-hat + eps I)^(-1/2) z.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eigenbatch.checks import check_flags, check_tensor, check_type, whole
from eigenbatch.core.contrast import (
    accumulated,
    check_matrix,
    finite_rows,
    no_autocast,
    positive_scalar,
    unit_rows,
)
from eigenbatch.errors import NumericalWarning, RowError, ShapeError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Sums over rows, so that `a + b` describes both batches together.

    Args:
        count: rows n.
        sum: (d,) sum of z.
        second: (d, d) sum of z z^T.

    Examples:
        >>> import torch
        >>> from eigenbatch import moments
        >>> z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> (moments(z[:32]) + moments(z[32:])).count
        64
    """

    count: int
    sum: Tensor
    second: Tensor

    def __post_init__(self) -> None:
        whole(self.count, "count", least=0)
        check_tensor(self.sum, "sum")
        check_tensor(self.second, "second")

    def __add__(self, other: Self) -> "Moments":
        if self.sum.shape != other.sum.shape:
            raise ShapeError(
                f"moments of dimension {len(self.sum)} and {len(other.sum)} cannot be added"
            )
        return Moments(
            count=self.count + other.count,
            sum=self.sum + other.sum,
            second=self.second + other.second,
        )

    @property
    def mean(self) -> Tensor:
        """(d,) mean row."""
        return self.sum / self.count

    @property
    def second_moment(self) -> Tensor:
        """(d, d) Sigma-hat: uncentred; trace one for unit rows."""
        return self.second / self.count

    @property
    def covariance(self) -> Tensor:
        """(d, d) second moment of the centred rows."""
        return self.second_moment - torch.outer(self.mean, self.mean)


@torch.no_grad()
def moments(z: Tensor, *, normalize: bool = True) -> Moments:
    """Count, sum and second-moment sum of rows; the results of several batches can be added.

    Args:
        z: (n, d) rows.
        normalize: put rows on the unit sphere first.

    Returns:
        Sums in float64 on the CPU.

    Examples:
        >>> import torch
        >>> from eigenbatch import moments, spectrum
        >>> z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> both = moments(z[:32]) + moments(z[32:])
        >>> abs(spectrum(both).top - spectrum(z).top) < 1e-12
        True
    """
    rows = accumulated_rows(z, normalize=normalize)  # (n, d)
    with no_autocast(rows):
        return Moments(count=len(rows), sum=rows.sum(0), second=rows.T @ rows)


def accumulated_rows(z: Tensor, *, normalize: bool) -> Tensor:
    """Detached rows in the dtype that sums are formed in."""
    check_tensor(z, "z")
    check_flags(normalize=normalize)
    rows = unit_rows(z.detach()) if normalize else finite_rows(z.detach(), "z")
    return accumulated(rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spectrum:
    """Eigenvalues of a trace-one second moment, and every rank that follows from them.

    Args:
        eigenvalues: (d,) largest first.
        count: rows behind them.

    Examples:
        >>> import torch
        >>> from eigenbatch import spectrum
        >>> two = spectrum(torch.tensor([[1.0, 0, 0], [0, 1, 0]]))  # two directions of three
        >>> two.eigenvalues.tolist(), two.attainable_rank
        ([0.5, 0.5, 0.0], 2)
    """

    eigenvalues: Tensor
    count: int

    @property
    def top(self) -> float:
        """sigma-hat = lambda_1, between 1/d and 1."""
        return self.eigenvalues[0].item()

    @property
    def participation_ratio(self) -> float:
        """1 / sum(lambda^2): the paper's R_eff; between 1 and min(n, d)."""
        return (1 / self.eigenvalues.square().sum()).item()

    @property
    def entropy_rank(self) -> float:
        """exp(-sum lambda log lambda). The paper calls it RankMe, which uses singular values."""
        return float(torch.special.entr(self.eigenvalues).sum().exp())

    @property
    def stable_rank(self) -> float:
        """tr(Sigma) / lambda_1 = 1 / sigma-hat: never above the participation ratio."""
        return 1 / self.top

    @property
    def isotropy_gap(self) -> float:
        """100 ||Sigma - I/d||_F / ||I/d||_F in percent; sampling alone gives 100 sqrt((d-1)/n)."""
        return gap_of_trace(len(self.eigenvalues), self.eigenvalues.square().sum().item())

    @property
    def attainable_rank(self) -> int:
        """min(n, d): the largest value any of the ranks can take."""
        return min(self.count, len(self.eigenvalues))


@torch.no_grad()
def spectrum(z_or_moments: Tensor | Moments, *, normalize: bool = True) -> Spectrum:
    """Eigenvalues of the trace-one second moment, by the smaller Gram matrix.

    Args:
        z_or_moments: rows (n, d), or the moments of one or several batches.
        normalize: put rows on the unit sphere first; False only divides the trace out, as RankMe
            does with backbone features.

    Returns:
        Eigenvalues, largest first, and the ranks that follow from them.

    Examples:
        >>> import torch
        >>> from eigenbatch import spectrum
        >>> round(spectrum(torch.eye(4)).participation_ratio, 6)
        4.0
    """
    check_rows_or_moments(z_or_moments)
    check_flags(normalize=normalize)
    if isinstance(z_or_moments, Moments):
        gram, count = z_or_moments.second, z_or_moments.count
        d = len(gram)
    else:
        rows = accumulated_rows(z_or_moments, normalize=normalize)  # (n, d)
        count, d = rows.shape
        gram = smaller_gram(rows)
    with no_autocast(gram):
        values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)  # (min(n, d),) descending
    return spectrum_of(values, count=count, dimension=d)


def spectrum_of(values: Tensor, *, count: int, dimension: int) -> Spectrum:
    """The spectrum behind the eigenvalues (r,) of a Gram matrix, largest first."""
    shares = values / _nonzero_trace(values.sum())
    padding = values.new_zeros(dimension - len(values))
    return Spectrum(eigenvalues=torch.cat([shares, padding]), count=count)


def check_rows_or_moments(value: object) -> None:
    """Raise ArgumentTypeError unless `value` is a tensor or moments."""
    check_type(value, (Tensor, Moments), "z_or_moments", ": use torch.from_numpy for arrays")


def smaller_gram(rows: Tensor) -> Tensor:
    """Z Z^T or Z^T Z, whichever is smaller: they share trace, Frobenius norm and eigenvalues."""
    with no_autocast(rows):
        return rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows


def descending_eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (r,) of a Gram matrix, largest first and never negative, and eigenvectors."""
    with no_autocast(gram):
        values, vectors = torch.linalg.eigh(gram)
    return values.flip(0).clamp(min=0), vectors.flip(1)


def leading_eigenvector(gram: Tensor, values: Tensor) -> Tensor:
    """(r, 1) eigenvector of the largest of the known eigenvalues, by two inverse iterations.

    A quarter of the cost of all eigenvectors. Its error is that of the shift over the distance to
    the second eigenvalue; where both coincide, any vector between them is an eigenvector.
    """
    shift = values[0] * (1 + 1e3 * torch.finfo(gram.dtype).eps)
    with no_autocast(gram):
        factors = torch.linalg.lu_factor(gram - shift * torch.eye(len(gram)).to(gram))
        vector = gram.sum(1, keepdim=True) + gram.diagonal()[:, None]  # (r, 1)
        for _ in range(2):
            vector = torch.linalg.lu_solve(*factors, vector)
            vector = vector / torch.linalg.vector_norm(vector)
    return vector


def leading_directions(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` + 1 largest eigenvalues of Z^T Z, and orthonormal eigenvectors (d, count).

    Eigenvalues past min(M, d) are zero, and so is a direction past the rank of the rows.
    """
    gram = smaller_gram(rows)
    if count > 1:
        return lifted(rows, *descending_eigh(gram), count)
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)  # (r,)
    return lifted(rows, values, leading_eigenvector(gram, values), count)


def lifted(rows: Tensor, values: Tensor, vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`leading_directions` from the eigenpairs of the rows' smaller Gram matrix."""
    vectors = vectors[:, :count]
    if len(rows) < rows.shape[1]:
        with no_autocast(rows):
            vectors, size = torch.linalg.qr(rows.T @ vectors)  # (d, k), (k, k)
        vectors = vectors * (size.diagonal().square() > torch.finfo(rows.dtype).eps * values[0])
    return torch.cat([values, values.new_zeros(1)])[: count + 1], vectors


def participation_ratio(z: Tensor, *, unbiased: bool = False, normalize: bool = True) -> float:
    """R_eff = 1 / tr(Sigma^2) without eigenvalues: (tr H)^2 / ||H||_F^2 on the smaller Gram H.

    Args:
        z: (n, d) rows.
        unbiased: estimate the population's value instead of this sample's (may exceed min(n, d),
            and is infinite when all rows are orthogonal).
        normalize: put rows on the unit sphere first; False is the paper's general-norm form.

    Returns:
        Between 1 (one direction) and min(n, d) (all alike).

    Examples:
        >>> import torch
        >>> from eigenbatch import participation_ratio
        >>> round(participation_ratio(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])), 6)
        1.8
    """
    squared_trace = _trace_of_square(z, unbiased=unbiased, normalize=normalize)
    return math.inf if squared_trace == 0 else 1 / squared_trace


def isotropy_gap(z: Tensor, *, unbiased: bool = False, normalize: bool = True) -> float:
    """The gap delta = 100 sqrt(d tr(Sigma^2) - 1) in percent, without eigenvalues.

    A raw batch of n perfectly isotropic rows shows 100 sqrt((d-1)/n); `unbiased=True` removes that
    floor, for independent rows: give one view of every sample, not two. The corrected
    d tr(Sigma^2) - 1 may fall below zero by chance: the result then carries its sign, so that
    averages over batches stay near zero.

    Args:
        z: (n, d) rows.
        unbiased: remove what sampling alone gives.
        normalize: put rows on the unit sphere first.

    Returns:
        The gap in percent.

    Examples:
        >>> import torch
        >>> from eigenbatch import isotropy_gap
        >>> isotropy_gap(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        100.0
    """
    squared_trace = _trace_of_square(z, unbiased=unbiased, normalize=normalize)
    return gap_of_trace(z.shape[1], squared_trace)


def rayleigh_scores(candidates: Tensor, batch: Tensor) -> Tensor:
    """q_B(z) = z^T Sigma_B z = mean over B of `<z, z'>^2`, for each candidate.

    Args:
        candidates: (c, d) rows.
        batch: (b, d) rows of B.

    Returns:
        (c,) scores; small ones add diversity.

    Examples:
        >>> import torch
        >>> from eigenbatch.core import rayleigh_scores
        >>> rayleigh_scores(torch.eye(2), torch.tensor([[1.0, 0.0]])).tolist()
        [1.0, 0.0]
    """
    check_matrix(candidates, "candidates")
    check_matrix(batch, "batch")
    if candidates.shape[-1] != batch.shape[-1]:
        raise ShapeError(
            f"candidates have dimension {candidates.shape[-1]}, the batch {batch.shape[-1]}"
        )
    candidates, batch = accumulated(candidates), accumulated(batch)
    with no_autocast(batch):
        return (candidates @ batch.T).square().mean(1)


def frobenius_diversity(candidates: Tensor, batch: Tensor) -> Tensor:
    """||Sigma_B - z z^T||_F^2 = t_B - 2 q_B(z) + ||z||^4, for each candidate.

    For unit rows its arg-max is the arg-min of q_B.

    Args:
        candidates: (c, d) rows.
        batch: (b, d) rows of B.

    Returns:
        (c,) squared distances.

    Examples:
        >>> import torch
        >>> from eigenbatch.core import frobenius_diversity
        >>> frobenius_diversity(torch.eye(2), torch.tensor([[1.0, 0.0]])).tolist()
        [0.0, 2.0]
    """
    scores, rows = rayleigh_scores(candidates, batch), accumulated(batch)
    with no_autocast(rows):
        trace = (rows @ rows.T).square().sum() / len(rows) ** 2
    return trace - 2 * scores + accumulated(candidates).square().sum(1).square()


def trace_after_adding(trace: Tensor, size: int, score: Tensor) -> Tensor:
    """tr(Sigma^2) of B with one more unit row (Lemma "One-step trace update").

    Args:
        trace: t_B.
        size: b = |B|.
        score: q_B(z) of the new row, or of several to choose from.

    Returns:
        The trace of the larger batch, one value per score.

    Examples:
        >>> import torch
        >>> from eigenbatch.core import trace_after_adding
        >>> trace_after_adding(torch.tensor(1.0), 1, torch.tensor([0.0, 1.0])).tolist()
        [0.5, 1.0]
    """
    return (size**2 * trace + 2 * size * score + 1) / (size + 1) ** 2


@torch.no_grad()
def _trace_of_square(z: Tensor, *, unbiased: bool, normalize: bool) -> float:
    """tr(Sigma^2) of the trace-one second moment, of the sample or estimated for the population.

    Unbiased: the mean of <z_i, z_j>^2 over i != j, which is (||G||_F^2 - n) / (n (n - 1)) for unit
    rows (audit of section "Empirical deviation from isotropy").
    """
    check_flags(unbiased=unbiased)
    check_matrix(z, "z", least=2 if unbiased else 1)
    rows = accumulated_rows(z, normalize=normalize)  # (n, d)
    gram = smaller_gram(rows)
    numerator = gram.square().sum()
    denominator = _nonzero_trace(gram.trace()).square()
    if unbiased:
        diagonal = rows.square().sum(1).square().sum()  # sum of ||z||^4
        numerator, denominator = (numerator - diagonal).clamp(min=0), denominator - diagonal
    return (numerator / denominator).item()


def _nonzero_trace(trace: Tensor) -> Tensor:
    if trace == 0:
        raise RowError("all rows are zero: there is no spectrum")
    return trace


def gap_of_trace(d: int, squared_trace: float) -> float:
    """100 sqrt(d tr(Sigma^2) - 1) in percent, with the sign of what is under the root."""
    excess = d * squared_trace - 1
    return math.copysign(100 * math.sqrt(abs(excess)), excess)


def whiten(z: Tensor, *, eps: float = 1e-5, renormalize: bool = True) -> Tensor:
    """Rows of z (n, d) whitened by their own second moment; differentiable.

    Uses the smaller Gram: Z (Z^T Z / n + eps)^(-1/2) = (Z Z^T / n + eps)^(-1/2) Z, so n < d costs
    less and its null space never appears. `renormalize` puts the rows back on the unit sphere.

    Args:
        z: (n, d) rows, at least two.
        eps: added to every eigenvalue.
        renormalize: put rows back on the unit sphere.

    Returns:
        (n, d) whitened rows in the dtype of z.

    Examples:
        >>> import torch
        >>> from eigenbatch import participation_ratio, whiten
        >>> scale = torch.tensor([5.0, 1.0, 1.0, 1.0])
        >>> z = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * scale
        >>> participation_ratio(whiten(z)) > participation_ratio(z)
        True
    """
    positive_scalar(eps, "eps")
    check_tensor(z, "z")
    check_flags(renormalize=renormalize)
    dtype = z.dtype
    rows = accumulated(unit_rows(z))  # (n, d)
    n, d = rows.shape
    if n < 2:
        raise ShapeError(f"whitening needs at least 2 rows, got {n}")
    with no_autocast(rows):
        wide = n < d
        gram = (rows @ rows.T if wide else rows.T @ rows) / n  # (min(n, d),) squared
        root, top = _InverseSquareRoot.apply(gram, eps)  # type: ignore[no-untyped-call]
        if gram.detach().trace() - top <= 1e-4 * eps:
            warnings.warn(
                f"the rows are identical up to sign (largest eigenvalue {float(top):.12f} of 1): "
                "whitening cannot spread them and returns them as they are",
                NumericalWarning,
                stacklevel=2,
            )
        white: Tensor = root @ rows if wide else rows @ root  # (n, d)
        if renormalize:
            white = white / torch.linalg.vector_norm(white, dim=1, keepdim=True)
    return white.to(dtype)


class _InverseSquareRoot(torch.autograd.Function):
    """(X + eps I)^(-1/2) of a symmetric X, and X's largest eigenvalue (no gradient).

    The derivative in the eigenbasis is F o (V^T E V) with the divided differences of f = s^(-1/2),

        F_ij = (f(s_i) - f(s_j)) / (s_i - s_j) = -1 / (sqrt(s_i s_j) (sqrt(s_i) + sqrt(s_j))),

    in which nothing is divided by s_i - s_j: repeated eigenvalues are no special case.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(x)
        root = (values.clamp(min=0) + eps).sqrt()  # (k,)
        ctx.save_for_backward(root, vectors)
        top = values[-1]
        ctx.mark_non_differentiable(top)
        return (vectors / root) @ vectors.T, top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        root, vectors = ctx.saved_tensors
        differences = -1 / (torch.outer(root, root) * (root[:, None] + root))  # (k, k)
        symmetric = (grad + grad.T) / 2
        inner = vectors.T @ symmetric @ vectors
        return vectors @ (differences * inner) @ vectors.T, None
