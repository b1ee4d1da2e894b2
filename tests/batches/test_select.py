import pytest
import torch

from clouds import cloud
from eigenbatch import Greedy, select
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError
from returns import WRONG


@pytest.mark.parametrize("returned", WRONG.values(), ids=WRONG)
def test_a_selector_is_told_what_to_return(returned):
    def wrong(pool, batch_size, *, generator=None):
        return returned

    with pytest.raises(
        (ArgumentTypeError, ShapeError, ParameterError),
        match="must return 3 distinct indices below 20 as a LongTensor, but wrong returned",
    ):
        select(cloud("random", 20, 4), 3, wrong)


def test_a_literal_search_may_stop_early():
    pool, selector = cloud("random", 40, 8), Greedy(window=(2.0, 8.0), literal=True)
    chosen = select(pool, 20, selector, generator=torch.Generator().manual_seed(0))
    assert 2 <= len(chosen) < 20
