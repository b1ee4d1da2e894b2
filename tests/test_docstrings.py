"""Every public name explains itself: arguments, results and an example that runs."""

import doctest
import inspect

import pytest

import eigenbatch

NAMES = sorted(eigenbatch.__all__)


def runner():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.DocTestRunner(verbose=False, optionflags=flags)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path):
    text = inspect.getdoc(getattr(eigenbatch, name)) or ""
    test = doctest.DocTestParser().get_doctest(text, {"tmp_path": tmp_path}, name, None, None)
    assert test.examples, f"{name} has no Examples:"
    run, output = runner(), []
    run.run(test, out=output.append)
    assert run.failures == 0, "".join(output)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_lists_its_arguments(name):
    one = getattr(eigenbatch, name)
    text = inspect.getdoc(one) or ""
    arguments = [p for p in inspect.signature(one).parameters if p not in ("self", "args")]
    made_by_us = inspect.isclass(one) and getattr(one, "__dataclass_params__", None)
    if arguments and not made_by_us:
        assert "Args:" in text, name
        for argument in arguments:
            assert f"{argument}:" in text, f"{name} does not explain {argument}"
    if inspect.isfunction(one):
        assert "Returns:" in text, name
