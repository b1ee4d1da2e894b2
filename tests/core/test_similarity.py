import math

import pytest
import torch
from torch import Tensor

from eigenbatch.core import sums as similarity
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.sums import HARD_SHARE, NEARLY, similarity_sums

TAU = 0.2


def cloud(n: int, d: int = 6, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def layouts() -> list[Contrast]:
    z = cloud(12, seed=0)
    other = z + 0.5 * cloud(12, seed=1)
    queue = cloud(30, seed=2)
    return [
        Contrast.paired(z, other),
        Contrast.cross(z, other),
        Contrast.queued(z, other, queue),
        Contrast.queued(z, other, queue, batch_negatives=True),
    ]


@pytest.mark.parametrize("contrast", layouts(), ids=["paired", "cross", "queue", "queue+batch"])
def test_sums_match_the_full_similarity_matrix(contrast: Contrast) -> None:
    p, s = 0.5, 0.1
    mask = contrast.negatives
    matrix = contrast.anchors @ contrast.keys.T
    own = matrix[torch.arange(len(matrix)), contrast.positive][:, None]
    distances = torch.cdist(contrast.anchors, contrast.keys).square()
    sums = similarity_sums(infonce(contrast, TAU), p, s)
    assert sums.pairs == mask.sum()
    assert sums.potential == pytest.approx((-2 * distances)[mask].exp().sum().item())
    assert sums.harder == ((matrix > own) & mask).sum()
    assert sums.look_alike == ((matrix >= p) & mask).sum()
    assert sums.nearly_alike == ((matrix >= p - NEARLY * (p - s)) & mask).sum()
    assert sums.anchors_with_look_alike == ((matrix >= p) & mask).any(1).sum()


@pytest.mark.parametrize("contrast", layouts(), ids=["paired", "cross", "queue", "queue+batch"])
def test_a_hard_batch_adds_a_quarter_of_the_negatives_at_the_hardest_one(contrast) -> None:
    mask = contrast.negatives
    weights = (contrast.anchors @ contrast.keys.T / TAU).exp()
    own = weights[torch.arange(len(weights)), contrast.positive]
    negatives = torch.where(mask, weights, 0)
    more = negatives.sum(1) + max(1, HARD_SHARE * contrast.negative_count) * negatives.amax(1)
    miss = more / (more + own)
    sums = similarity_sums(infonce(contrast, TAU), 0.5, 0.1)
    assert sums.hard_miss == pytest.approx(miss.sum().item())
    assert sums.squared_hard_miss == pytest.approx(miss.square().sum().item())


def test_uniformity_is_wang_and_isolas_when_no_pair_is_left_out() -> None:
    x = torch.nn.functional.normalize(cloud(15, seed=0))
    far = torch.nn.functional.normalize(cloud(15, seed=3))
    contrast = Contrast.queued(x, far, x)
    sums = similarity_sums(infonce(contrast, TAU), 2.0, 0.0)
    off_diagonal = sums.potential - len(x)  # each row met itself once, at distance zero
    mean = off_diagonal / (len(x) * (len(x) - 1))
    expected = torch.pdist(x).square().mul(-2).exp().mean().log().item()
    assert math.log(mean) == pytest.approx(expected)


def test_row_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    contrast = layouts()[0]
    whole = similarity_sums(infonce(contrast, TAU), 0.5, 0.0)
    monkeypatch.setattr(similarity, "BLOCK_ELEMENTS", 5 * len(contrast.keys))
    torch.testing.assert_close(
        similarity_sums(infonce(contrast, TAU), 0.5, 0.0).vector(), whole.vector()
    )
