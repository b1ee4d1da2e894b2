"""What Algorithm 2 maximises: Rayleigh scores, Frobenius diversity and the one-step trace lemma."""

from torch import Tensor

from eigenbatch.core.precision import accumulated, check_matrix, no_autocast
from eigenbatch.errors import ShapeError


def rayleigh_scores(candidates: Tensor, batch: Tensor) -> Tensor:
    """q_B(z) = z^T Sigma_B z = mean over B of `<z, z'>^2`, for each candidate.

    Args:
        candidates: (c, d) rows.
        batch: (b, d) rows of B.

    Returns:
        (c,) scores; small ones add diversity.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import rayleigh_scores
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
        >>> from eigenbatch.selectors import frobenius_diversity
        >>> frobenius_diversity(torch.eye(2), torch.tensor([[1.0, 0.0]])).tolist()
        [0.0, 2.0]
    """
    check_matrix(batch, "batch")
    check_matrix(candidates, "candidates")
    batch = accumulated(batch)
    with no_autocast(batch):
        trace = (batch @ batch.T).square().sum() / len(batch) ** 2
    fourth = accumulated(candidates).square().sum(1).square()  # (c,)
    return trace - 2 * rayleigh_scores(candidates, batch) + fourth


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
        >>> from eigenbatch.selectors import trace_after_adding
        >>> trace_after_adding(torch.tensor(1.0), 1, torch.tensor([0.0, 1.0])).tolist()
        [0.5, 1.0]
    """
    return (size**2 * trace + 2 * size * score + 1) / (size + 1) ** 2
