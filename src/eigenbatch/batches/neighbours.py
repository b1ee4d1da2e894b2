"""Hard batches: an epoch of neighbourhoods, from cells of similar rows.

Rows are first cut into cells of similar rows by halving, then batches are taken from each cell: a
random row and its nearest of what is left. So the cost is linear in the data. With two towers the
similarity of samples i and j is the mean of <anchor_i, key_j> and <anchor_j, key_i>: the nearest
are the hardest negatives. Letters: N rows, c rows of a cell, n rows of a batch, w width of a row
(towers x d), b seeds compared at once.
"""

import math

import torch
from torch import Tensor

from eigenbatch.batches.planner import Planner, check_plan, check_sizes, shuffled
from eigenbatch.core.contrast import no_autocast, unit_rows

NEAR_DUPLICATE = 0.95
"""Same-tower cosine above which two samples are no negatives of each other. It concerns under 1 %
of the rows of a plan; a bar relative to the positives 87 to 98 %."""

CELL = 2048
"""Rows of a cell, at least eight batches. From 512 to all rows the gain is the same within noise
(German translations, code search, captions; 2 seeds each)."""

DIRECTIONS, SAMPLED = 32, 2048
"""Leading directions of so many rows, in which cells are halved."""

SEEDS = 16
"""Seeds that are compared with their cell in one product."""

JUDGED = 4096
"""Rows whose miss is computed to describe a plan."""


class Neighbours(Planner):
    """Batches of similar samples: a random sample and its nearest ones of what is left.

    Similar samples are hard negatives of each other. They pay in retrieval (sentence pairs,
    CLIP-like training) while training pairs are not memorised; where features are judged by classes
    (SimCLR on pictures) they lose. Near-duplicates, above a cosine of 0.95, are kept apart.

    As a selector, for `select`, it chooses one such batch from a pool.

    Examples:
        >>> import torch
        >>> from eigenbatch import Neighbours, select
        >>> corners = torch.eye(4).repeat(25, 1)  # 25 copies of each
        >>> chosen = select(corners, 20, Neighbours())
        >>> len(set(chosen.remainder(4).tolist()))  # all from one corner
        1
    """

    apart = NEAR_DUPLICATE

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d); batches of one cell follow each other."""
        check_plan(rows, batch_size, generator)
        count = len(rows) // batch_size
        order = shuffled(len(rows), generator, rows.device)[: count * batch_size]
        if count < 2:
            return order.view(count, batch_size)
        matrix, towers = rows.flatten(1), rows.shape[1]  # (N, w), no copy
        with no_autocast(rows):
            cells = _halved(matrix, order, batch_size, generator)
            batches = [cell[_in_turn(matrix[cell], towers, batch_size)] for cell in cells]
        return torch.cat(batches)

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch of a pool (k, d)."""
        check_sizes(pool, batch_size)
        order = shuffled(len(pool), generator, pool.device)
        rows = unit_rows(pool.detach(), "pool")[order]
        similarity = rows @ rows[0]  # (k,)
        similarity[0] = math.inf
        return order[similarity.topk(batch_size).indices]


def _halved(
    matrix: Tensor, order: Tensor, batch_size: int, generator: torch.Generator | None
) -> list[Tensor]:
    """Cells of similar rows, out of those in random order, each a multiple of the batch size.

    A part is cut at the middle along a random mixture of its leading directions: three power
    iterations on 512 of its rows, from a random start. Another plan has other cells.
    """
    size = max(CELL, 8 * batch_size)
    if len(order) <= size:
        return [order]
    some = matrix[order[:: -(-len(order) // SAMPLED)]]
    some = some - some.mean(0)
    _, vectors = torch.linalg.eigh(some.T @ some)
    projected = matrix @ vectors[:, -DIRECTIONS:]  # (N, 32)
    cells, parts = [], [order]
    while parts:
        part = parts.pop()
        if len(part) <= size:
            cells.append(part)
            continue
        places = projected[part]  # (p, 32)
        few = places[:: -(-len(places) // 512)]
        few = few - few.mean(0)
        direction = torch.randn(few.shape[1], generator=generator).to(few)
        for _ in range(3):
            direction = few.T @ (few @ direction)
            direction /= torch.linalg.vector_norm(direction).clamp_min(1e-30)
        part = part[(places @ direction).argsort()]
        middle = len(part) // batch_size // 2 * batch_size
        parts += [part[middle:], part[:middle]]
    return cells


def _in_turn(cell: Tensor, towers: int, batch_size: int) -> Tensor:
    """(c // n, n) indices into a cell (c, w) in random order: the first row left, and its nearest.

    Several seeds are compared with the cell in one product; a seed that another one took is passed
    over.
    """
    halves = cell.chunk(towers, 1)
    turned = torch.cat(halves[::-1], 1)  # keys are compared with anchors
    left = torch.ones(len(cell), dtype=torch.bool, device=cell.device)
    batches: list[Tensor] = []
    while len(batches) * batch_size < len(cell):
        remaining = left.nonzero()[:, 0]
        if len(remaining) == batch_size:
            batches.append(remaining)
            break
        step = -(-len(remaining) // SEEDS)
        seeds = remaining[::step]  # spread over what is left
        similarity = turned[seeds] @ cell.T  # (b, c)
        similarity[:, ~left] = -math.inf
        for row, seed in zip(similarity, seeds.tolist(), strict=True):
            if not left[seed]:
                continue
            row[seed] = math.inf
            batch = row.topk(batch_size).indices
            left[batch] = False
            similarity[:, batch] = -math.inf
            batches.append(batch)
            if len(batches) * batch_size >= len(cell):
                break
    return torch.stack(batches)


@torch.no_grad()
def batch_misses(rows: Tensor, batches: Tensor, tau: float) -> Tensor:
    """(B,) mean miss of each batch (B, n) of rows (N, 2, d), over the anchors of both sides.

    It is sigmoid(logsumexp over negatives - positive logit), as in `core.infonce`: 1 - p cancels.
    """
    some = rows[batches]  # (B, n, 2, d)
    with no_autocast(some):
        logits = some[:, :, 0] @ some[:, :, 1].mT / tau  # (B, n, n)
    positives = logits.diagonal(dim1=1, dim2=2).clone()  # (B, n)
    logits.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    both = (logits.logsumexp(side) - positives for side in (1, 2))
    return torch.stack([odds.sigmoid().mean(1) for odds in both]).mean(0)


def miss_of(rows: Tensor, batches: Tensor, tau: float) -> float | None:
    """Mean miss of batches: how probable the positive is not, over the anchors of both sides.

    Args:
        rows: (N, towers, d) unit rows.
        batches: (B, n) indices of rows; of many, some are looked at.
        tau: temperature of the loss.

    Returns:
        The miss; None for one tower, without batches, and for batches of one sample.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import miss_of
        >>> pairs = torch.eye(4)[:, None].repeat(1, 2, 1)  # both towers agree
        >>> round(miss_of(pairs, torch.arange(4).view(2, 2), tau=0.5), 3)  # sigmoid(-2)
        0.119
    """
    if rows.shape[1] < 2 or not len(batches) or batches.shape[1] < 2:
        return None
    count = max(1, JUDGED // batches.shape[1])
    return batch_misses(rows, batches[:: -(-len(batches) // count)], tau).mean().item()
