"""Checks of arguments and saved states, shared by all layers.

Every message names the argument, what it is and what it should be.
"""

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from operator import index
from typing import Any, TypeGuard

import torch
from torch import Tensor

from eigenbatch.errors import ArgumentTypeError, ParameterError


def check_type(value: object, kind: type | tuple[type, ...], name: str, fix: str = "") -> None:
    """Raise ArgumentTypeError unless `value` is a `kind`; `fix` is added to the message."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join("None" if one is type(None) else _type_name(one) for one in kinds)
        raise ArgumentTypeError(f"{name} must be {wanted}, got {described(value)}{fix}")


def check_tensor(value: object, name: str) -> None:
    """Raise ArgumentTypeError unless `value` is a tensor; says how to convert an array."""
    is_array = type(value).__module__ == "numpy"
    check_type(value, Tensor, name, f": use torch.from_numpy({name})" if is_array else "")


def check_generator(value: object) -> None:
    """Raise ArgumentTypeError unless `value` is a torch.Generator or None."""
    check_type(value, (torch.Generator, type(None)), "generator")


def check_callable(value: object, name: str, example: str) -> None:
    """Raise ArgumentTypeError unless `value` can be called; a class is a forgotten ()."""
    if not callable(value) or isinstance(value, type):
        raise ArgumentTypeError(f"{name} must be callable, such as {example}, got {value!r:.80}")


def check_flags(**flags: object) -> None:
    """Raise ArgumentTypeError unless every argument, given by its name, is True or False."""
    for name, value in flags.items():
        check_type(value, bool, name)


def check_choice(value: object, options: Collection[str], name: str) -> None:
    """Raise unless `value` is one of the strings in `options`."""
    check_type(value, str, name)
    if value not in options:
        raise ParameterError(f"{name} must be one of {tuple(options)}, got {value!r}")


def whole(value: object, name: str, *, least: int | None = None) -> int:
    """`value` as an int; numpy's integers and integer tensors count, 4.0 and True do not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]  # that is the question
    except (TypeError, ValueError):
        text = f"{name} must be a whole number (int), got {described(value)}"
        raise ArgumentTypeError(text) from None
    if least is not None and number < least:
        raise ParameterError(f"{name} must be at least {least}, got {number}")
    return number


def real(value: object, name: str) -> float:
    """`value` as a float: a number or a tensor with one element."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be a number, got {described(value)}")
    return float(value)


def ids_tensor(ids: object, name: str = "ids") -> Tensor:
    """`ids` as a tensor; raises ArgumentTypeError if torch cannot make one of it."""
    try:
        if ids is None or isinstance(ids, str):
            raise TypeError
        index = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        text = f"{name} must be a vector of integers, got {described(ids)}"
        raise ArgumentTypeError(text) from None
    if index.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch computes little in them
        index = index.long()
    # An empty list has no dtype of its own.
    return index if isinstance(ids, Tensor) or index.numel() else index.long()


def described(value: object) -> str:
    """A value and its type for an error message; of an array or tensor its shape."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    text = f"of shape {tuple(shape)}" if isinstance(shape, tuple) else f"{value!r:.60}"
    return f"{_type_name(type(value))} {text}"


def check_entries(
    state: object,
    owner: str,
    entries: Mapping[str, Callable[[Any], bool]],
    *,
    error: type[ValueError] = ParameterError,
) -> None:
    """Raise `error` unless `state` is a dict with exactly these entries and each is valid."""
    if not isinstance(state, dict) or set(state) != set(entries):
        found = sorted(map(str, state)) if isinstance(state, dict) else described(state)
        raise error(
            f"a {owner} state holds {sorted(entries)}, got {found}: was it taken from another one?"
        )
    for name, is_valid in entries.items():
        if not is_valid(state[name]):
            raise error(
                f"{name!r} in a {owner} state cannot be {described(state[name])}: it is damaged"
            )


def is_count(value: object) -> bool:
    """Whether a saved value is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_flag(value: object) -> bool:
    """Whether a saved value is True or False."""
    return isinstance(value, bool)


def is_dict(value: object) -> bool:
    """Whether a saved value is a dict, such as the state of a part."""
    return isinstance(value, dict)


def is_number(value: object) -> bool:
    """Whether a saved value is a number, infinity included."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and not math.isnan(value)  # type: ignore[arg-type]


def are_numbers(value: object) -> bool:
    """Whether a saved value is a list of numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def is_integer_tensor(value: object, shape: tuple[int | None, ...]) -> TypeGuard[Tensor]:
    """Whether a saved value is a tensor of int32 or int64 in this shape; None is any size."""
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int32, torch.int64)
        and value.layout == torch.strided
        and not value.is_meta
        and value.ndim == len(shape)
        and all(wanted in (None, found) for wanted, found in zip(shape, value.shape, strict=True))
    )


def _type_name(kind: type) -> str:
    if kind is Tensor:
        return "a torch.Tensor"
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
