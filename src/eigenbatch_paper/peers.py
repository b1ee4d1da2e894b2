"""Planners of other papers, written from them, to be compared with ours.

Both build a graph of the samples and read batches off it. Here similarity is the mean of both
directions between the towers, and every sample comes once per epoch. Letters: N rows, n of a batch.
"""

import torch
from torch import Tensor

BLOCK = 1024
"""Rows compared with all others at a time."""


def register() -> None:
    """Make both known to the trainer by name."""
    from eigenbatch.train import NAMES, Name

    NAMES["gcbs"] = Name("gcbs", GCBS.__doc__ or "", lambda _: GCBS(), whole_epoch=True)
    NAMES["walk"] = Name("walk", Walk.__doc__ or "", lambda _: Walk(), whole_epoch=True)


class GCBS:
    """Global contrastive batch sampling (Sachidananda, Yang and Zhu, 2022).

    Similarities below a quantile are dropped, and reverse Cuthill-McKee orders the samples so that
    those that are left lie near the diagonal; batches are cut from that order. The paper's quantile
    keeps one in a thousand.
    """

    kept = 1e-3

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        import numpy as np
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        count = len(rows)
        shuffle = torch.randperm(count, generator=generator)  # ties differ between epochs
        first, last = rows[shuffle, 0], rows[shuffle, -1]
        drawn = torch.randint(count, (2, 200_000), generator=generator)
        some = (first[drawn[0]] * last[drawn[1]]).sum(1)
        bar = some.kthvalue(int((1 - self.kept) * len(some))).values
        found = []
        for start in range(0, count, BLOCK):
            near = (first[start : start + BLOCK] @ last.T > bar).nonzero()  # (found, 2)
            near[:, 0] += start
            found.append(near)
        i, j = torch.cat(found).T.numpy()
        graph = coo_matrix((np.ones(len(i), np.int8), (i, j)), (count, count)).tocsr()
        both = graph + graph.T
        order = torch.from_numpy(reverse_cuthill_mckee(both, symmetric_mode=True).copy()).long()
        return _cut(shuffle[order], batch_size)


class Walk:
    """BatchSampler (Yang et al., 2023): batches are random walks with restart on a proximity graph.

    A sample's edges go to the `edges` nearest of `candidates` drawn at random; a walk returns to
    its first sample with probability `restart`. The paper's values; where a walk meets nothing new
    for long, it goes on from a fresh sample.
    """

    candidates, edges, restart = 1000, 100, 0.2

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        import random

        count = len(rows)
        edges = self._edges(rows, generator)
        draw = random.Random(int(torch.randint(2**31, (1,), generator=generator)))
        starts = torch.randperm(count, generator=generator).tolist()
        used = bytearray(count)
        order: list[int] = []
        while len(order) < count:
            start = here = next(s for s in iter(starts.pop, None) if not used[s])
            used[start] = 1
            batch, idle = [start], 0
            while len(batch) < batch_size and len(order) + len(batch) < count:
                back = draw.random() < self.restart
                here = start if back else edges[here][int(draw.random() * len(edges[here]))]
                idle += 1
                if not used[here]:
                    used[here], idle = 1, 0
                    batch.append(here)
                elif idle > 10 * len(edges[here]):  # the surroundings are used up
                    start = here = next(s for s in iter(starts.pop, None) if not used[s])
                    used[start], idle = 1, 0
                    batch.append(start)
            order += batch
        return _cut(torch.tensor(order), batch_size)

    def _edges(self, rows: Tensor, generator: torch.Generator | None) -> list[list[int]]:
        """The nearest of random candidates, drawn once for every block of rows."""
        count, found = len(rows), []
        drawn, kept = min(self.candidates, count), min(self.edges, count)
        for start in range(0, count, BLOCK):
            ids = torch.randperm(count, generator=generator)[:drawn]
            block = rows[start : start + BLOCK]
            near = block[:, 0] @ rows[ids, -1].T + block[:, -1] @ rows[ids, 0].T
            found += ids[near.topk(kept).indices].tolist()
        return found


def _cut(order: Tensor, batch_size: int) -> Tensor:
    whole = len(order) // batch_size * batch_size
    return order[:whole].view(-1, batch_size)
