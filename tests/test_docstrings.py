"""Every public name explains itself: arguments, results and an example that runs."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
LISTED = re.findall(r"^::: (eigenbatch\.[\w.]+)$", PAGE, re.MULTILINE)
ROOMS = [
    f"eigenbatch.{room}.{name}"
    for room in ("core", "batches", "monitor", "runs", "train")
    for name in import_module(f"eigenbatch.{room}").__all__
]
LEFT_OUT = re.compile(r"\.integrations\.|Error$|Warning$|RECIPES|NAMES|LOGGED")
"""Errors and tables need no example; docs/integrations.md shows adapters with their frameworks."""


NAMES = {
    name.rpartition(".")[2]: name for name in [*ROOMS, *LISTED] if LEFT_OUT.search(name) is None
}.values()
"""Every name once: the page has where it is defined, a room where it is imported from."""


def named(name: str) -> object:
    module, _, own = name.rpartition(".")
    return getattr(import_module(module), own)


def runner():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.DocTestRunner(verbose=False, optionflags=flags)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path):
    text = inspect.getdoc(named(name)) or ""
    test = doctest.DocTestParser().get_doctest(text, {"tmp_path": tmp_path}, name, None, None)
    assert test.examples, f"{name} has no Examples:"
    assert "\nExamples:\n" in text, f"{name}: the API page renders only sections called Examples:"
    run, output = runner(), []
    run.run(test, out=output.append)
    assert run.failures == 0, "".join(output)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_lists_its_arguments(name):
    one = named(name)
    text = inspect.getdoc(one) or ""
    for argument in inspect.signature(one).parameters.keys() - {"self", "args", "kwargs"}:
        assert re.search(rf"^    \*?{argument}: ", text, re.MULTILINE), f"{name}: {argument}"
    if inspect.isfunction(one) and inspect.signature(one).return_annotation is not None:
        assert "\nReturns:\n" in text, name


@pytest.mark.parametrize("name", NAMES)
def test_formulas_are_not_taken_for_html(name):
    """An inner product <a, b> vanishes from the API page, unless it stands in backticks."""
    one = named(name)
    members = vars(one).items() if inspect.isclass(one) else ()
    for part in [one, *(member for key, member in members if not key.startswith("_"))]:
        text = inspect.getdoc(part)
        prose = re.sub(r"`[^`]*`", "", (text or "").partition("\nExamples:\n")[0])
        assert not re.search(r"<[a-zA-Z/]", prose), prose
