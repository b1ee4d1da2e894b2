import pytest
import torch

from clouds import cloud, unit
from eigenbatch import Blend, Greedy, Neighbours, Random, participation_ratio
from eigenbatch.errors import ParameterError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_single_cluster_is_a_seed_and_its_nearest_neighbours():
    pool = cloud("random", 100, 6)
    rows = unit(pool)
    chosen = Neighbours(1)(pool, 12, generator=generator())
    seed = torch.randperm(100, generator=generator())[0]
    expected = (rows @ rows[seed]).topk(12).indices
    assert set(chosen.tolist()) == set(expected.tolist())


def test_clusters_share_the_batch_evenly():
    centres = torch.eye(4, dtype=torch.float64)
    labels = torch.arange(4).repeat_interleave(25)
    pool = centres[labels] + 1e-3 * cloud("random", 100, 4)
    for seed in range(5):
        chosen = labels[Neighbours(1)(pool, 25, generator=generator(seed))]
        assert len(chosen.unique()) == 1
    chosen = Neighbours(3)(pool, 11, generator=generator())
    assert len(chosen) == 11


def test_clustered_batches_are_harder_than_random_ones():
    pool = cloud("clustered", 1000, 32)

    def hardness(selector):
        rows = unit(pool[selector(pool, 64, generator=generator())])
        return (rows @ rows.T).fill_diagonal_(0).square().mean()

    assert hardness(Neighbours(4)) > 1.5 * hardness(Random())


def test_the_blend_runs_from_similar_over_random_to_diverse():
    pool = cloud("anisotropic", 2000, 32)
    ranks = []
    for weight in (-1, -0.3, 0, 0.3, 1):
        chosen = [Blend(weight)(pool, 128, generator=generator(s)) for s in range(3)]
        ranks.append(sum(participation_ratio(pool[c]) for c in chosen) / 3)
    assert ranks == sorted(ranks)


def test_the_ends_and_the_middle_of_the_blend_are_known_selectors():
    pool = cloud("random", 200, 8)
    whole = Greedy(probe=None)(pool, 20, generator=generator())
    assert torch.equal(Blend(1)(pool, 20, generator=generator()), whole)
    uniform = Random()(pool, 20, generator=generator())
    assert torch.equal(Blend(0)(pool, 20, generator=generator()), uniform)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Blend(1.1), "got 1.1"), (lambda: Neighbours(0), "at least 1, got 0")],
)
def test_bad_options_raise_with_their_values(make, message):
    with pytest.raises(ParameterError, match=message):
        make()
