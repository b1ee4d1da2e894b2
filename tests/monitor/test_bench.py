"""A small part of benchmarks/diagnosis_bench: each layout healthy, and a few breakages."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.diagnosis_bench.__main__ import warnings_of
from benchmarks.diagnosis_bench.cases import MOCO, SIMCLR, TOWERS, Case
from benchmarks.diagnosis_bench.data import WORDS, Pairs, digits
from benchmarks.diagnosis_bench.runs import RUN

pytestmark = pytest.mark.slow

CHOSEN = {
    "simclr": ("healthy", "dimension 256", "watermark", "learning rate 0", "NaN at step 150"),
    "moco": ("healthy", "random queue"),
    "towers": ("healthy", "label-free", "30 % wrong pairs"),
}
CASES = [case for case in SIMCLR + MOCO + TOWERS if case.name in CHOSEN[case.layout]]


def bitext() -> Pairs:
    """Two languages of invented words: of the ten words of a sentence four are translated."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 400, (2500, 10), generator=generator)
    first, second = torch.zeros(2, 2500, WORDS)
    first.scatter_(1, words, 1.0)
    words = torch.cat([words[:, :4], torch.randint(0, 400, (2500, 6), generator=generator)], 1)
    second.scatter_(1, 1000 - words, 1.0)
    return Pairs(first / 10**0.5, second / 10**0.5, torch.arange(2500))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layout}: {case.name}")
def test_the_finding_stated_before_the_run_is_made_and_no_misleading_one(case: Case) -> None:
    data = bitext() if case.layout == "towers" else digits()
    found = set(warnings_of(RUN[case.layout](case, data, seed=1)))
    assert found & set(case.expected) if case.expected else not found
    assert found <= {*case.expected, *case.beside}
