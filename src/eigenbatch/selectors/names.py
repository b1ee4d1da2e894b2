"""Selectors by name, as the command line and manifests write them: greedy-64, p3-0.3, recipe.

The table can be read without torch: a wrong name is reported at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eigenbatch.errors import ArgumentTypeError, ParameterError

if TYPE_CHECKING:
    from eigenbatch.selectors.selector import Selector


@dataclass(frozen=True, slots=True)
class Name:
    """One kind of selector: how it is written, what it does, and how it is made."""

    form: str
    summary: str
    make: "Callable[[str | None], Selector]"
    argument: Callable[[str], object] | None = None  # checks the text after the dash


def _random(_: str | None) -> "Selector":
    from eigenbatch.selectors.random import Random

    return Random()


def _p1(_: str | None) -> "Selector":
    from eigenbatch.selectors.pool import PoolMax

    return PoolMax()


def _p2(_: str | None) -> "Selector":
    from eigenbatch.selectors.pool import PoolMin

    return PoolMin()


def _p3(fraction: str | None) -> "Selector":
    from eigenbatch.selectors.pool import PoolBalanced

    return PoolBalanced(float(fraction or 0.5))


def _greedy(probe: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy

    return Greedy(None if probe == "pool" else int(probe or 64))


def _neighbours(seeds: str | None) -> "Selector":
    from eigenbatch.selectors.neighbours import Neighbours

    return Neighbours(int(seeds or 4))


def _auto(target: str | None) -> "Selector":
    from eigenbatch.selectors.auto import Auto

    return Auto(0.1, target=float(target or 0.5))


def _clustered(seeds: str | None) -> "Selector":
    return _neighbours(seeds or "8")


def _blend(weight: str | None) -> "Selector":
    from eigenbatch.selectors.difficulty import Blend

    return Blend(float(weight or 0.5))


def _recipe(batches: str | None) -> "Selector":
    from eigenbatch.selectors.schedule import Schedule
    from eigenbatch.selectors.signals import AfterBatches

    return Schedule(when=AfterBatches(int(batches)) if batches else None)


def _probe(text: str) -> object:
    return text if text == "pool" else int(text)


NAMES = {
    "random": Name("random", "uniform batches", _random),
    "p1": Name("p1", "the most diverse of several random batches", _p1),
    "p2": Name("p2", "the least diverse of several random batches", _p2),
    "p3": Name("p3[-FRACTION]", "a batch of moderate diversity", _p3, float),
    "greedy": Name("greedy[-PROBE|-pool]", "picks that raise diversity fastest", _greedy, _probe),
    "neighbours": Name(
        "neighbours[-SEEDS]", "hard batches: seeds and their nearest", _neighbours, int
    ),
    "auto": Name("auto[-MISS]", "random to hard, by the predicted miss", _auto, float),
    "clustered": Name("clustered[-SEEDS]", "an older name of neighbours", _clustered, int),
    "blend": Name("blend[-WEIGHT]", "from similar (-1) to diverse (1) batches", _blend, float),
    "recipe": Name("recipe[-BATCHES]", "the paper's schedule: P3, then Greedy-64", _recipe, int),
}


def check_selector(name: str) -> None:
    """Raise a ParameterError unless `name` is written as in the table."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name must be a text such as greedy-64, got {name!r}")
    kind, _, argument = name.partition("-")
    if kind not in NAMES:
        forms = ", ".join(one.form for one in NAMES.values())
        raise ParameterError(f"unknown selector {name!r}: choose a name from {forms}")
    if argument:
        try:
            parse = NAMES[kind].argument
            if parse is None:
                raise ValueError("it takes no argument")
            parse(argument)
        except ValueError as reason:
            raise ParameterError(
                f"selector {name!r} is not written as {NAMES[kind].form}: {reason}"
            ) from None


def selector_named(name: str) -> "Selector":
    """The selector of that name.

    Example:
        >>> from eigenbatch.selectors import selector_named
        >>> selector_named("greedy-32").probe
        32
    """
    check_selector(name)
    kind, _, argument = name.partition("-")
    try:
        return NAMES[kind].make(argument or None)
    except ValueError as reason:
        raise ParameterError(f"selector {name!r} cannot be made: {reason}") from reason
