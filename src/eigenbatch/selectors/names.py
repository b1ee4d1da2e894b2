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


def _p1(then: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy
    from eigenbatch.selectors.pool import PoolBalanced, PoolMax
    from eigenbatch.selectors.schedule import Schedule
    from eigenbatch.selectors.signals import AfterBatches, RankPlateau

    if then is None:
        return PoolMax()
    if then == "p3":
        return Schedule(PoolMax(), PoolBalanced(), RankPlateau())
    return Schedule(PoolMax(), Greedy(64), AfterBatches(_warmup(then)))


def _p2(when: str | None) -> "Selector":
    from eigenbatch.selectors.plateau import OnLossPlateau
    from eigenbatch.selectors.pool import PoolBalanced, PoolMin
    from eigenbatch.selectors.schedule import EveryNth

    if when is None:
        return PoolMin()
    if when == "flat":
        return OnLossPlateau(PoolMin(), PoolBalanced())
    return EveryNth(PoolMin(), int(when), PoolBalanced())


def _p3(target: str | None) -> "Selector":
    from eigenbatch.selectors.pool import PoolBalanced

    if target is not None and "-" in target:
        return PoolBalanced(window=_window(target))
    return PoolBalanced(float(target or 0.5))


def _centroid(probe: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy

    return Greedy(int(probe or 64), score="centroid")


def _steered(window: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy

    return Greedy(window=_window(window or ""))


def _literal(window: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy

    return Greedy(window=_window(window or ""), literal=True)


def _greedy(probe: str | None) -> "Selector":
    from eigenbatch.selectors.greedy import Greedy

    return Greedy(None if probe == "pool" else int(probe or 64))


def _neighbours(seeds: str | None) -> "Selector":
    from eigenbatch.selectors.neighbours import Neighbours

    return Neighbours(int(seeds or 4))


def _auto(target: str | None) -> "Selector":
    from eigenbatch.selectors.auto import Auto

    return Auto(0.1, target=float(target)) if target else Auto(0.1)


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


def _window(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    return float(low), float(high)


def _warmup(text: str) -> int:
    """Batches of P1 in "greedy-BATCHES"."""
    word, _, batches = text.partition("-")
    if word != "greedy":
        raise ValueError(f"{word!r} is neither p3 nor greedy")
    return int(batches)


def _after_p1(text: str) -> object:
    return text if text == "p3" else _warmup(text)


def _when_p2(text: str) -> object:
    return text if text == "flat" else int(text)


def _target(text: str) -> object:
    return _window(text) if "-" in text else float(text)


NAMES = {
    "random": Name("random", "uniform batches", _random),
    "p1": Name(
        "p1[-p3|-greedy-BATCHES]",
        "the most diverse of several random batches; then P3 or Greedy-64",
        _p1,
        _after_p1,
    ),
    "p2": Name(
        "p2[-EVERY|-flat]",
        "the least diverse of several random batches; P3 with some of them",
        _p2,
        _when_p2,
    ),
    "p3": Name("p3[-FRACTION|-LOW-HIGH]", "a batch of moderate diversity", _p3, _target),
    "greedy": Name("greedy[-PROBE|-pool]", "picks that raise diversity fastest", _greedy, _probe),
    "centroid": Name("centroid[-PROBE]", "greedy by the mean row, a cheap proxy", _centroid, int),
    "window": Name(
        "window-LOW-HIGH", "greedy towards an effective rank in a window", _steered, _window
    ),
    "literal": Name(
        "literal-LOW-HIGH", "Algorithm 2 as printed; its batches may be short", _literal, _window
    ),
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
    if argument or ("[" not in NAMES[kind].form and NAMES[kind].argument is not None):
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

    Args:
        name: written as in `eigenbatch train --help`, e.g. "greedy-64".

    Returns:
        A new selector.

    Examples:
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
