"""Rows know which version of the trainer made them, and an interval holds one version."""

import pytest

from eigenbatch.errors import RunError
from eigenbatch.train import made_by
from eigenbatch_paper import registry
from eigenbatch_paper.claim import Chunk
from eigenbatch_paper.reproduce import ClaimRun, _key, _of_one_version

CHUNKS = [
    Chunk(f"{selector}-seed-{seed}", {"selector": selector, "seed": seed})
    for seed in range(4)
    for selector in ("random", "greedy")
]


def lines(versions):
    """By chunk: seed i of selector j was made by this version."""
    return {
        _key(chunk): {"made_by": {"sampler": versions[chunk.settings["seed"]][place % 2]}}
        for place, chunk in enumerate(CHUNKS)
    }


def test_a_seed_that_mixes_versions_leaves_the_interval_and_is_named():
    kept, left = _of_one_version(CHUNKS, lines([(1, 1), (1, 2), (1, 1), (2, 2)]))
    assert [chunk.settings["seed"] for chunk in kept] == [0, 0, 2, 2]
    assert left == [
        f"{selector}-seed-{seed}" for seed in (1, 3) for selector in ("random", "greedy")
    ]


def test_rows_of_mixed_versions_only_are_an_error():
    with pytest.raises(RunError, match="every seed of random mixes versions"):
        _of_one_version(CHUNKS, lines([(1, 2)] * 4))


def test_rows_of_claims_that_train_say_what_made_them(tmp_path):
    trains, theory = (
        ClaimRun.open(registry.claim(name), "smoke", tmp_path)
        for name in ("planned-batches", "numerical-scale")
    )
    for run in (trains, theory):
        run.add(run.claim.chunks("smoke")[0], [{}], 1.0)
    assert [line["made_by"] for line in trains._lines().values()] == [made_by()]
    assert ["made_by" in line for line in theory._lines().values()] == [False]
