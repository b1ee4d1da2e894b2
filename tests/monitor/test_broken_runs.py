"""Real runs, broken on purpose: each gets its diagnosis, the healthy one gets none."""

import pytest
from digit_runs import BROKEN, HEALTHY, run, warnings

SEEDS = range(3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_healthy_run_gets_no_warning_at_any_step(seed: int) -> None:
    readings = run(HEALTHY, seed=seed)
    assert warnings(readings) == set()
    assert [one.name for one in readings[-1].findings] == ["healthy"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_run_ends_with_its_diagnosis(name: str, seed: int) -> None:
    assert name in warnings(run(BROKEN[name], seed=seed)[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["false negatives", "identical views"])
def test_a_broken_data_set_gets_no_other_diagnosis(name: str) -> None:
    assert warnings(run(BROKEN[name])) == {name}
