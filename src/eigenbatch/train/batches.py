"""How batches are made: their size, what plans them, and the names of all planners and selectors.

The table can be read without torch: a wrong name is reported at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from torch import Tensor

    from eigenbatch.batches import EmbeddingCache, SpectralBatchSampler

Pairs = Callable[[], "tuple[Tensor, Tensor]"]

FILL_SHARE = 0.05
"""All samples are embedded once where that takes at most this share of a run's time."""


@dataclass(frozen=True, kw_only=True)
class BatchesConfig(Config):
    """Batches planned from cached embeddings.

    Args:
        selector: a name as in `eigenbatch train --help`, e.g. greedy-64. For retrieval (pairs)
            neighbours or auto; where features are judged by classes (pictures) random.
        batch_size: samples per batch, over all processes.
        pool_size: samples that a selector such as greedy-64 chooses from; None: ten batches.
        replace: every batch of a selector from a fresh random pool, as printed in the paper:
            samples may come several times per epoch or never.
        fill_cache: whether to embed all samples once after `fill_step` steps, so that the first
            epoch is planned too: "auto" where it takes at most 5 % of the training time.
        fill_step: steps before that. An untrained encoder knows little about its samples. 0, for an
            encoder that is not: before the first step, outside of the training time.
    """

    selector: str = "random"
    batch_size: Annotated[int, Range(2, 2**20)] = 128
    pool_size: Annotated[int, Range(2, 2**31 - 1)] | None = None
    replace: bool = False
    fill_cache: Literal["auto", "yes", "no"] = "auto"
    fill_step: Annotated[int, Range(0, 2**31 - 1)] = 100

    def check(self) -> None:
        """The selector must be known and the pool hold a batch."""
        name = check_selector(self.selector)
        if self.pool_size is not None and self.pool_size < self.batch_size:
            raise ParameterError(
                f"pool_size must be at least batch_size, got {self.pool_size} < {self.batch_size}"
            )
        if self.replace and NAMES[name].whole_epoch:
            raise ParameterError(
                f"replace=true is for selectors such as greedy-64: {self.selector} plans all "
                "samples of an epoch at once"
            )

    def fills(self, size: int, steps: int) -> bool:
        """Whether all of `size` samples are embedded once in a run of so many steps.

        Embedding takes about a third of a training step's time per sample.
        """
        if self.selector == "random" or self.fill_cache == "no" or self.fill_step >= steps:
            return False
        return self.fill_cache == "yes" or size / (3 * self.batch_size * steps) <= FILL_SHARE

    def build(
        self,
        cache: "EmbeddingCache",
        *,
        seed: int,
        tau: Callable[[], float],
        held_out: Pairs | None,
        trained: Pairs | None,
    ) -> "SpectralBatchSampler":
        """The batch sampler over the cache's samples, for a loss of this temperature."""
        from eigenbatch.batches import SpectralBatchSampler

        kind, _, argument = self.selector.partition("-")
        if kind == "auto":
            from eigenbatch.batches import Auto

            if held_out is None or trained is None:
                raise ParameterError(
                    f"batches.selector={self.selector} compares training pairs with held-out "
                    "ones, and there are too few: set data.held_out=512"
                )
            limit = {"limit": float(argument)} if argument else {}
            planner: Any = Auto(tau, held_out=held_out, trained=trained, **limit)
        else:
            planner = selector_named(self.selector)
        pool = None if NAMES[kind].whole_epoch else self.pool_size
        return SpectralBatchSampler(
            cache, self.batch_size, planner, tau=tau, seed=seed, pool_size=pool,
            replace=self.replace,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Name:
    """One kind of planner or selector: how it is written, what it does, and how it is made.

    Args:
        form: how it is written, e.g. "greedy[-PROBE|-pool]".
        summary: what it does, in a few words.
        make: from the text after the dash, or None, to a new planner or selector.
        argument: checks the text after the dash; None: it takes none.
        whole_epoch: it plans all samples of an epoch at once.

    Examples:
        >>> from eigenbatch.train import NAMES
        >>> NAMES["greedy"].form, NAMES["greedy"].make("32").probe
        ('greedy[-PROBE|-pool]', 32)
    """

    form: str
    summary: str
    make: Callable[[str | None], Any]
    argument: Callable[[str], object] | None = None
    whole_epoch: bool = False


def _p1(then: str | None) -> Any:
    from eigenbatch.batches import (
        AfterBatches,
        Greedy,
        PoolBalanced,
        PoolMax,
        RankSteady,
        Schedule,
    )

    if then is None:
        return PoolMax()
    if then == "p3":
        return Schedule(PoolMax(), PoolBalanced(), RankSteady())
    return Schedule(PoolMax(), Greedy(64), AfterBatches(_warmup(then)))


def _p2(when: str | None) -> Any:
    from eigenbatch.batches import EveryNth, OnLossPlateau, PoolBalanced, PoolMin

    if when is None:
        return PoolMin()
    if when == "flat":
        return OnLossPlateau(PoolMin(), PoolBalanced())
    return EveryNth(PoolMin(), int(when), PoolBalanced())


def _p3(target: str | None) -> Any:
    from eigenbatch.batches import PoolBalanced

    if target is not None and "-" in target:
        return PoolBalanced(window=_window(target))
    return PoolBalanced(float(target or 0.5))


def _greedy(probe: str | None) -> Any:
    from eigenbatch.batches import Greedy

    return Greedy(None if probe == "pool" else int(probe or 64))


def _centroid(probe: str | None) -> Any:
    from eigenbatch.batches import Greedy

    return Greedy(int(probe or 64), score="centroid")


def _steered(window: str | None) -> Any:
    from eigenbatch.batches import Greedy

    return Greedy(window=_window(window or ""))


def _literal(window: str | None) -> Any:
    from eigenbatch.batches import Greedy

    return Greedy(window=_window(window or ""), literal=True)


def _blend(weight: str | None) -> Any:
    from eigenbatch.batches import Blend

    return Blend(float(weight or 0.5))


def _recipe(batches: str | None) -> Any:
    from eigenbatch.batches import AfterBatches, Schedule

    return Schedule(when=AfterBatches(int(batches)) if batches else None)


def _random(_: str | None) -> Any:
    from eigenbatch.batches import Random

    return Random()


def _neighbours(_: str | None) -> Any:
    from eigenbatch.batches import Neighbours

    return Neighbours()


def _auto(_: str | None) -> Any:
    raise ParameterError(
        "auto needs functions that embed held-out and training pairs: "
        "Auto(tau, held_out=..., trained=...)"
    )


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
    "neighbours": Name(
        "neighbours", "hard batches: a sample and its nearest, for retrieval", _neighbours,
        whole_epoch=True,
    ),
    "auto": Name(
        "auto[-LIMIT]", "neighbours while pairs are not memorised (needs data.held_out)", _auto,
        float, whole_epoch=True,
    ),
    "p1": Name(
        "p1[-p3|-greedy-BATCHES]",
        "the most diverse of several random batches; then P3 or Greedy-64", _p1, _after_p1,
    ),
    "p2": Name(
        "p2[-EVERY|-flat]",
        "the least diverse of several random batches; P3 with some of them", _p2, _when_p2,
    ),
    "p3": Name("p3[-FRACTION|-LOW-HIGH]", "a batch of moderate diversity", _p3, _target),
    "greedy": Name("greedy[-PROBE|-pool]", "picks that raise diversity fastest", _greedy, _probe),
    "centroid": Name("centroid[-PROBE]", "greedy by the mean row, a cheap proxy", _centroid, int),
    "window": Name(
        "window-LOW-HIGH", "greedy towards an effective rank in a window", _steered, _window
    ),
    "literal": Name(
        "literal-LOW-HIGH", "Algorithm 2 as printed, filled up at random", _literal, _window
    ),
    "blend": Name("blend[-WEIGHT]", "from similar (-1) to diverse (1) batches", _blend, float),
    "recipe": Name("recipe[-BATCHES]", "the paper's schedule: P3, then Greedy-64", _recipe, int),
}  # fmt: skip


def check_selector(name: str) -> str:
    """The first word of a name; raises a ParameterError unless it is written as in the table."""
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
    return kind


def selector_named(name: str) -> Any:
    """The planner or selector of that name.

    Args:
        name: written as in `eigenbatch train --help`, e.g. "greedy-64".

    Returns:
        A new one.

    Examples:
        >>> from eigenbatch.train import selector_named
        >>> selector_named("greedy-32").probe
        32
    """
    kind = check_selector(name)
    try:
        return NAMES[kind].make(name.partition("-")[2] or None)
    except ValueError as reason:
        raise ParameterError(f"selector {name!r} cannot be made: {reason}") from reason
