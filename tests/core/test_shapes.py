"""Shapes are written in the docstrings, "(n, d)": here each is compared with a real tensor.

One letter means one size within a call; the sizes of the samples differ from each other.
"""

import inspect
import re

import pytest
import torch

from eigenbatch import Contrast, Random, gradient_band, infonce, moments, select, spectrum, whiten
from eigenbatch.batches import candidate_ranks
from eigenbatch.core import (
    decompose,
    frobenius_diversity,
    leave_out_top_eigenvalues,
    negative_tops,
    rayleigh_scores,
)
from eigenbatch.core.prediction import outlook

WRITTEN = re.compile(r"^\((\w+(?:, \w+)*),?\)")
FIRST, SECOND, QUEUE = torch.randn(29, 5, generator=torch.Generator().manual_seed(0)).split(
    (7, 7, 15)
)
LAYOUTS = {
    "paired": Contrast.paired(FIRST, SECOND),
    "cross": Contrast.cross(FIRST, SECOND),
    "queued": Contrast.queued(FIRST, SECOND, QUEUE),
}


def fit(text: str, value: object, sizes: dict[str, int], name: str) -> bool:
    """Whether a shape is written at all; raises if the tensor has another one."""
    written = WRITTEN.match(text)
    if written is None or not isinstance(value, torch.Tensor):
        return False
    letters = written[1].split(", ")
    assert len(letters) == value.ndim, f"{name} is {tuple(value.shape)}, not {written[0]}"
    for letter, size in zip(letters, value.shape, strict=True):
        assert sizes.setdefault(letter, size) == size, f"{name}: {written[0]}, {sizes}"
    return True


def explained(one: object) -> dict[str, str]:
    """What a docstring says about each argument or field."""
    return dict(re.findall(r"^    (\w+): (.+)$", inspect.getdoc(one), re.MULTILINE))


def check_record(record: object) -> int:
    """Compare fields with Args and properties with their docstrings; how many were compared."""
    sizes: dict[str, int] = {}
    texts = explained(type(record))
    for name, member in vars(type(record)).items():
        if isinstance(member, property):
            texts[name] = inspect.getdoc(member)
    return sum(fit(text, getattr(record, name), sizes, name) for name, text in texts.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_of_a_batch_have_the_shapes_they_state(layout: str) -> None:
    contrast = LAYOUTS[layout]
    values, candidates = infonce(contrast, 0.5), moments(contrast.candidates)
    for record, least in {
        contrast: 5,
        values: 14,
        decompose(contrast, 0.5): 4,
        gradient_band(contrast, 0.5): 4,
        candidates: 5,
        spectrum(candidates): 1,
        outlook(contrast, values, spectrum(candidates)): 5,
    }.items():
        assert check_record(record) >= least, type(record).__name__


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (whiten, {"z": FIRST}),
        (moments, {"z": FIRST}),
        (negative_tops, {"contrast": LAYOUTS["paired"]}),
        (leave_out_top_eigenvalues, {"z": QUEUE, "positive": torch.arange(15).roll(1)}),
        (rayleigh_scores, {"candidates": QUEUE, "batch": FIRST}),
        (frobenius_diversity, {"candidates": QUEUE, "batch": FIRST}),
        (candidate_ranks, {"batches": QUEUE.view(3, 5, 5)[:, :4]}),
        (select, {"pool": QUEUE, "batch_size": 4, "selector": Random()}),
    ],
)
def test_functions_take_and_return_the_shapes_they_state(function, arguments) -> None:
    sizes: dict[str, int] = {name: n for name, n in arguments.items() if isinstance(n, int)}
    texts = explained(function)
    stated = sum(fit(texts[name], value, sizes, name) for name, value in arguments.items())
    returned = re.search(r"^Returns:\n    (.+)$", inspect.getdoc(function), re.MULTILINE)
    stated += fit(returned[1], function(**arguments), sizes, "the result")
    assert stated
