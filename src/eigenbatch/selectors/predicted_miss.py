"""The miss of a batch before it is used, from its cached embeddings.

Letters: n rows of a batch, s of them that are looked at, w width of a row.
"""

import torch
from torch import Tensor

from eigenbatch.core.contrast import Layout
from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.offer import Offer

LOOKED_AT = 512
"""Rows of a batch whose miss is computed, against all the others: the mean needs no more."""


def predicted_miss(
    offer: Offer,
    batch: Tensor,
    tau: float,
    positive: float | None = None,
    *,
    layout: Layout = "cross",
) -> float:
    """Mean miss of a batch as cached, over the anchors of both sides."""
    rows = offer.rows.index_select(0, batch)  # (n, w)
    return misses(rows, offer.towers, tau, positive, layout=layout)[1].mean().item()


def misses(
    rows: Tensor, towers: int, tau: float, positive: float | None = None, *, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Rows of a batch (n, w) that are looked at, and the miss of each (s,), mean of both sides.

    It is sigmoid(logsumexp over negatives - positive logit), as in `core.infonce`: 1 - p cancels.
    With one tower key j is positive * z_j and a part orthogonal to all other rows, so that its
    similarity to anchor i is positive * <z_i, z_j>, and to key i positive^2 * <z_i, z_j>.
    """
    if towers == 2:
        anchors, keys = rows.chunk(2, dim=1)
    else:
        assert positive is not None
        anchors, keys = rows, positive * rows
    step = -(-len(rows) // LOOKED_AT)
    index = torch.arange(0, len(rows), step, device=rows.device)  # (s,)
    found = torch.zeros(len(index), dtype=rows.dtype, device=rows.device)
    with no_autocast(rows):
        for own, other in ((anchors, keys), (keys, anchors)):
            some = own[::step]  # (s, d)
            across = some @ other.T / tau  # (s, n)
            positives = across.gather(1, index[:, None])  # (s, 1)
            negatives = [across] if layout == "cross" else [across, some @ own.T / tau]
            logits = [part.scatter(1, index[:, None], -torch.inf) for part in negatives]
            found += (torch.cat(logits, 1).logsumexp(1) - positives[:, 0]).sigmoid() / 2
    return index, found
