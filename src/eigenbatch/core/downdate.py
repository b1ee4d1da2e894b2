"""Top eigenvalues after removing one or two rows, for every anchor at once.

Letters: M rows z, r = min(M, d) eigenpairs (lambda, v) of H = Z^T Z, descending.

Anchor i's negatives-only moment is A = H - U U^T with U = [z_i, z_i+] (one column for CLIP). In the
eigenbasis, with S(x) = I + U^T (x - H)^-1 U of size 2 x 2, Haynsworth's inertia formula gives

    #{eigenvalues of A above x} = #{lambda > x} - #{negative eigenvalues of S(x)},

so a trial x lies above the wanted mu exactly when the two counts agree, and interlacing brackets mu
in [lambda_2, lambda_1] or [lambda_3, lambda_2]. Inside such an interval mu is the only root of phi,
the eigenvalue of S that changes sign there: it falls from +inf at the left pole to -inf at the
right one, with slope -||y||^2 where S w = phi w and y = (x - H)^-1 U w. Each step replaces phi by
the rational function with those two poles that has its value and slope, split between the poles as
the eigenvalues are (the "middle way" of LAPACK's dlaed4), and solves that: quadratic convergence,
about four evaluations of O(r) per anchor. A bracket and bisection are the fallback.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenbatch.checks import check_tensor
from eigenbatch.core.contrast import (
    Contrast,
    accumulated,
    check_contrast,
    check_matrix,
    no_autocast,
)
from eigenbatch.core.spectrum import accumulated_rows, descending_eigh, smaller_gram
from eigenbatch.errors import ShapeError

_BLOCK_ELEMENTS = 2**18
_MAX_STEPS = 200


def pole_guard(dtype: torch.dtype) -> float:
    """Distance kept from the poles, relative to lambda_1; the error is at most 16 times this."""
    return max(1e-12, 32 * torch.finfo(dtype).eps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenbasis:
    """Eigenvalues of Z^T Z, largest first, and the rows of Z in the eigenbasis."""

    eigenvalues: Tensor  # (r,)
    coordinates: Tensor  # (M, r)


def eigenbasis(rows: Tensor) -> Eigenbasis:
    """Eigenbasis of `rows` (M, d), by the smaller Gram."""
    values, vectors = descending_eigh(smaller_gram(rows))  # (r,), (r, r)
    if len(rows) < rows.shape[1]:
        return Eigenbasis(eigenvalues=values, coordinates=vectors * values.sqrt())
    with no_autocast(rows):
        return Eigenbasis(eigenvalues=values, coordinates=rows @ vectors)


@torch.no_grad()
def leave_out_top_eigenvalues(z: Tensor, positive: Tensor) -> Tensor:
    """sigma*^(i) = lambda_max of the negatives-only second moment, for every anchor i; (n,).

    Costs about one eigendecomposition of the smaller Gram instead of n of them.

    Args:
        z: (n, d) all rows of an NT-Xent batch.
        positive: (n,) index of each row's positive.

    Returns:
        (n,) largest eigenvalues, in float64 on the CPU.

    Examples:
        >>> import torch
        >>> from eigenbatch import leave_out_top_eigenvalues
        >>> tops = leave_out_top_eigenvalues(torch.eye(6), torch.arange(6).roll(3))
        >>> [round(top, 6) for top in tops.tolist()]  # four orthogonal negatives each
        [0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    """
    check_matrix(z, "z", least=3)
    check_tensor(positive, "positive")
    n = len(z)
    itself = torch.arange(n, device=z.device)
    if positive.shape != (n,) or positive.is_floating_point():
        raise ShapeError(f"positive must hold {n} integers, got {tuple(positive.shape)}")
    if not (((positive >= 0) & (positive < n) & (positive != itself)).all()):
        raise ShapeError(f"positive must name another row of the batch, each in 0..{n - 1}")
    basis = eigenbasis(accumulated_rows(z, normalize=True))
    return top_after_removal(basis, (itself, positive)) / (n - 2)


def negative_tops(contrast: Contrast) -> Tensor:
    """sigma*^(i) of every anchor's own negatives, whatever the layout.

    Args:
        contrast: the batch.

    Returns:
        (n,) largest eigenvalue of the second moment of each anchor's negatives.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast
        >>> from eigenbatch.core import negative_tops
        >>> negative_tops(Contrast.cross(torch.eye(3), torch.eye(3)))
        tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    check_contrast(contrast)
    rows = accumulated(contrast.candidates)  # (M, d)
    if contrast.removed:
        tops = top_after_removal(eigenbasis(rows), contrast.removed)
    else:
        with no_autocast(rows):
            tops = torch.linalg.eigvalsh(smaller_gram(rows))[-1].expand(len(contrast.anchors))
    return tops / contrast.negative_count


def top_after_removal(basis: Eigenbasis, removed: tuple[Tensor, ...]) -> Tensor:
    """Largest eigenvalue of H - sum over removed rows z z^T, one value per anchor; (n,).

    `removed` holds one or two index tensors (n,). Mutual pairs (i, j), (j, i) are solved once.
    """
    anchors = torch.arange(len(removed[0]), device=removed[0].device)
    wanted, mutual = anchors, False
    if len(removed) == 2:
        itself, positive = removed
        mutual = torch.equal(itself, anchors) and torch.equal(positive[positive], anchors)
        wanted = anchors[anchors < positive] if mutual else anchors
    tops = basis.coordinates.new_empty(len(anchors))
    step = max(1, _BLOCK_ELEMENTS // len(basis.eigenvalues))
    for block in torch.split(wanted, step):
        rows = [basis.coordinates[index[block]] for index in removed]  # 1 or 2 of (b, r)
        tops[block] = _top_of_downdate(basis.eigenvalues, rows)
    if mutual:
        tops[positive[wanted]] = tops[wanted]
    return tops


def _top_of_downdate(values: Tensor, removed: list[Tensor]) -> Tensor:
    """Top eigenvalue of diag(values) - sum of the rows' outer products, for each row; (b,)."""
    scale, guard = values[0], pole_guard(values.dtype) * values[0]
    first, second, third = torch.cat([values, values.new_zeros(2)])[:3]
    quotient = scale - sum(row[:, 0].square() for row in removed)  # (b,) of v_1: at most mu
    below = torch.zeros_like(quotient, dtype=torch.bool)  # (b,) is mu under lambda_2?
    if len(removed) == 2 and (doubtful := quotient <= second + guard).any():
        rows = [row[doubtful] for row in removed]
        just_above = (second + guard).expand(len(rows[0]))
        tied = first - second <= 4 * guard
        below[doubtful] = tied | (_secular(just_above, values, rows, flips=1)[0] <= 0)

    tops = torch.maximum(quotient, torch.where(below, third, second))
    for left, right, flips, inside in ((second, first, 1, ~below), (third, second, 2, below)):
        chosen = inside & (right - tops > 4 * guard)
        if chosen.any():
            rows = [row[chosen] for row in removed]
            tops[chosen] = _root_between(left, right, tops[chosen], values, rows, flips)
    return tops


def _root_between(
    left: Tensor, right: Tensor, start: Tensor, values: Tensor, removed: list[Tensor], flips: int
) -> Tensor:
    """The root of phi in (left, right), from `start` at or below it; (b,)."""
    guard = pole_guard(values.dtype) * values[0]
    roots = start.clone()
    low, high = start, right.expand_as(start)
    trial = torch.where(start > left + guard, start, (left + right) / 2)
    last_step = right - left
    rows = torch.arange(len(start), device=start.device)  # still open
    for _ in range(_MAX_STEPS):
        trial = trial.clamp(left + guard, right - guard)
        phi, above_part, below_part = _secular(trial, values, removed, flips)
        low = torch.where(phi > 0, torch.maximum(low, trial), low)
        high = torch.where(phi > 0, high, torch.minimum(high, trial))
        # phi ~ c + s / (x - left) + t / (x - right): value and slope agree at the trial.
        to_left, to_right = trial - left, right - trial
        s, t = below_part * to_left.square(), above_part * to_right.square()
        c = phi - s / to_left + t / to_right
        b = c * (to_left - to_right) + s + t
        k = to_left * to_right * phi
        root = (b.square() + 4 * c * k).clamp(min=0).sqrt()
        step = torch.where(b >= 0, 2 * k / (b + root), (root - b) / (2 * c))
        step = torch.minimum(torch.maximum(step, low - trial), high - trial)
        stalled = ~(step.abs() <= last_step / 2)  # also catches NaN
        middle = (low + high) / 2 - trial
        step = torch.where(stalled, middle, step)
        roots[rows] = trial + step
        open_rows = (step.abs() > guard / 8) & (high - low > 4 * guard)
        if not open_rows.any():
            return roots
        rows, trial, last_step = rows[open_rows], (trial + step)[open_rows], step[open_rows].abs()
        low, high = low[open_rows], high[open_rows]
        removed = [row[open_rows] for row in removed]
    raise AssertionError("bisection always closes the bracket")


def _secular(
    trial: Tensor, values: Tensor, removed: list[Tensor], flips: int
) -> tuple[Tensor, Tensor, Tensor]:
    """phi, the flips-th smallest eigenvalue of S(trial), and its slope's two parts; (b,) each.

    The parts are the sums of y^2 over the `flips` eigenvalues above the trial and over the rest.
    """
    resolvent = (trial[:, None] - values).reciprocal_()  # (b, r)
    one = removed[0] * resolvent  # (b, r)
    s11 = 1 + (one * removed[0]).sum(1)  # (b,)
    if len(removed) == 1:
        phi, y = s11, one
    else:
        two = resolvent.mul_(removed[1])  # (b, r)
        s22 = 1 + (two * removed[1]).sum(1)
        s12 = (one * removed[1]).sum(1)
        tilt = (s11 - s22) / 2
        radius = torch.hypot(tilt, s12) * (-1 if flips == 1 else 1)
        phi = (s11 + s22) / 2 + radius  # (b,)
        # An eigenvector (cos, sin) of [[tilt, s12], [s12, -tilt]] for the eigenvalue `radius`.
        angle = torch.atan2(s12, tilt) / 2 + (torch.pi / 2 if flips == 1 else 0)
        y = one.mul_(angle.cos()[:, None]).add_(two.mul_(angle.sin()[:, None]))  # (b, r)
    weight = y.square_()
    above = weight[:, :flips].sum(1)
    return phi, above, weight[:, flips:].sum(1)
