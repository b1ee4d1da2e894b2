"""What a selector is: a callable from a pool of embeddings to the indices of one batch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, check_generator, check_tensor, described, whole
from eigenbatch.core.precision import check_matrix, finite_rows, unit_rows
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError


class Selector(Protocol):
    """What a selector is: a callable from a pool of embeddings to the indices of one batch.

    All randomness comes from `generator`; without one, from torch's global generator.

    Examples:
        >>> import torch
        >>> from eigenbatch import select
        >>> def first_rows(pool, batch_size, *, generator=None):  # any such function is a selector
        ...     return torch.arange(batch_size)
        >>> select(torch.randn(40, 8), 3, first_rows).tolist()
        [0, 1, 2]
    """

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch.

        Args:
            pool: (k, d) embeddings of the candidates.
            batch_size: how many to choose.
            generator: source of randomness.

        Returns:
            (batch_size,) distinct indices into the pool, a LongTensor on its device.
        """
        ...


@runtime_checkable
class Stateful(Protocol):
    """A selector that remembers earlier pools, and can be saved with the training run.

    With these two promises a sampler need not copy a state or roll it back.
    """

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically: new plain values that never change later."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a bad one raises ValueError before anything changes."""
        ...


@runtime_checkable
class CheckedState(Protocol):
    """A stateful selector that can tell beforehand whether it would load a state.

    Selectors made of several others ask all of them first, so that they load all or none.
    """

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise the error that `load_state_dict` would raise; changes nothing."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """A selector that must know which samples the rows of the pool are (groups, labels)."""

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The same selector, sharing its state, for a pool whose row i is sample `ids[i]`.

        `of` is the number of samples, where it is known and should be checked.
        """
        ...


def bound(selector: Selector, ids: Tensor, of: int | None = None) -> Selector:
    """The selector, bound to `ids` if it depends on which samples the rows are."""
    return selector.bind(ids, of) if isinstance(selector, Bindable) else selector


def check_ids(ids: object, of: object) -> None:
    """Raise unless these are arguments for `bind`: a vector of sample ids, and a size or None."""
    check_tensor(ids, "ids")
    if of is not None:
        whole(of, "of", least=0)


def select(
    pool: Tensor, batch_size: int, selector: Selector, *, generator: torch.Generator | None = None
) -> Tensor:
    """Super-batch mode: embed more than a batch, keep the best one.

    For streams, where no index sampler can exist:

        z = encoder(images)                       # 10 x batch_size rows
        keep = select(z, batch_size, Greedy())    # then train on images[keep]

    Args:
        pool: (k, d) embeddings of the candidates.
        batch_size: how many of them to keep.
        selector: a selector, such as `Greedy()`.
        generator: the source of randomness; torch's global one if not given.

    Returns:
        (batch_size,) indices into the pool; fewer only from `Greedy(literal=True)`.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy, select
        >>> z = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> z[select(z, 10, Greedy())].shape
        torch.Size([10, 8])
    """
    check_callable(selector, "selector", "Greedy()")
    check_generator(generator)
    check_sizes(pool, batch_size)
    chosen = selector(pool.detach(), batch_size, generator=generator)
    fewer = may_stop_early(selector)
    return checked_indices(chosen, selector, batch_size, len(pool), fewer=fewer)


def may_stop_early(selector: object) -> bool:
    """Whether its batches may be short: those of `Greedy(literal=True)`, also as a part."""
    parts = getattr(selector, "_parts", ())
    return bool(getattr(selector, "literal", False)) or any(map(may_stop_early, parts))


def checked_indices(
    chosen: object, selector: Selector, batch_size: int, stop: int, *, fewer: bool = False
) -> Tensor:
    """What `selector` returned; raises unless it is a batch of distinct indices below `stop`."""
    wanted = f"a selector must return {batch_size} distinct indices below {stop} as a LongTensor"
    name = type(selector).__name__
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.int64:
        kind = chosen.dtype if isinstance(chosen, Tensor) else type(chosen).__name__
        fix = "use torch.tensor(indices, dtype=torch.int64)"
        raise ArgumentTypeError(f"{wanted}, but {name} returned {kind}: {fix}")
    if chosen.ndim != 1 or not (1 if fewer else batch_size) <= len(chosen) <= batch_size:
        raise ShapeError(f"{wanted}, but {name} returned shape {tuple(chosen.shape)}")
    ascending = chosen.sort().values
    if (ascending[1:] == ascending[:-1]).any() or ascending[0] < 0 or ascending[-1] >= stop:
        raise ParameterError(f"{wanted}, but {name} returned {chosen.tolist()!s:.200}")
    return chosen


def check_sizes(pool: Tensor, batch_size: int) -> None:
    """Raise unless `batch_size` rows can be chosen from the pool."""
    check_matrix(pool, "pool")
    whole(batch_size, "batch_size", least=1)
    if len(pool) < batch_size:
        raise ShapeError(
            f"pool has {len(pool)} rows but batch_size is {batch_size}: a selector needs k >= n "
            "(is drop_last=False leaving a short last pool?)"
        )


def check_pool(pool: Tensor, batch_size: int) -> Tensor:
    """The pool as it is, in its working dtype; raises on bad sizes and rows that are not finite."""
    check_sizes(pool, batch_size)
    return finite_rows(pool.detach(), "pool")


def unit_pool(pool: Tensor, batch_size: int) -> Tensor:
    """The rows of the pool on the unit sphere; raises on bad sizes and rows."""
    check_sizes(pool, batch_size)
    return unit_rows(pool.detach(), "pool")


def shuffled(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A random permutation of `count` indices on `device`, drawn on the generator's own."""
    check_generator(generator)
    source = device if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=source).to(device)


def state_of(selector: object) -> dict[str, Any]:
    """The selector's state, empty for one that has none."""
    return selector.state_dict() if isinstance(selector, Stateful) else {}


def check_state(selector: object, state: object) -> None:
    """Raise ParameterError unless `restore` would load this state; changes nothing."""
    if not isinstance(state, dict):
        raise ParameterError(
            f"the state of {type(selector).__name__} must be a dict, got {described(state)}"
        )
    if isinstance(selector, CheckedState):
        selector.check_state_dict(state)
    elif state and not isinstance(selector, Stateful):
        raise ParameterError(
            f"the saved state has {sorted(map(str, state))} but {type(selector).__name__} keeps "
            "none: was it taken from another selector?"
        )


def restore(selector: object, state: dict[str, Any]) -> None:
    """Load a state taken by `state_of` from a selector of the same kind, or change nothing."""
    check_state(selector, state)
    if isinstance(selector, Stateful):
        selector.load_state_dict(state)


def holds_state_of(selector: object) -> Callable[[object], bool]:
    """A check for `check_entries`: the entry is a state of this part of a selector."""

    def check(state: object) -> bool:
        check_state(selector, state)
        return True

    return check
