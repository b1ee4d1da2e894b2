"""Numbers of a record, each declared once: its meaning, and who shows it.

Scalars, tables and documents are made from these declarations.
"""

import math
from collections.abc import Iterator
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=type)


class Declared(NamedTuple):
    """What is known of a number.

    meaning: in words.
    title: in small tables; empty: not shown there.
    logged: whether loggers send it without being asked for all.
    """

    name: str
    meaning: str
    title: str = ""
    logged: bool = False


def number(meaning: str, *, title: str = "", logged: bool = False, **options: Any) -> Any:
    """A field of a dataclass that is logged as a scalar; options as of `dataclasses.field`."""
    return field(metadata={"declared": Declared("", meaning, title, logged)}, **options)


def note(meaning: str, **options: Any) -> Any:
    """A field that is no scalar: a text, a record, or a number for rules only."""
    return field(metadata={"meaning": meaning}, **options)


class derived(property):  # noqa: N801  (a decorator)
    """A property that is logged as a scalar; its docstring is its meaning."""


def declared(record: type) -> Iterator[Declared]:
    """The numbers of a class, in their order."""
    for one in fields(record):
        if found := one.metadata.get("declared"):
            yield found._replace(name=one.name)
    for kind in record.__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, derived):
                yield Declared(name, (member.__doc__ or "").partition("\n")[0].rstrip("."))


def known_numbers(record: Any) -> dict[str, float]:
    """Its numbers by name; those that are None, NaN or infinite are left out."""
    values = ((one.name, getattr(record, one.name)) for one in declared(type(record)))
    return {
        name: float(value) for name, value in values if value is not None and math.isfinite(value)
    }


def documented(record: T) -> T:
    """List the fields of a dataclass in its docstring, before the examples."""
    text, mark, examples = (record.__doc__ or "").partition("    Examples:\n")
    lines = "\n".join(f"        {one.name}: {_meaning(one)}." for one in fields(record))
    record.__doc__ = f"{text}    Args:\n{lines}\n\n{mark}{examples}"
    return record


def _meaning(one: "Field[Any]") -> str:
    found = one.metadata.get("declared")
    return found.meaning if found else str(one.metadata["meaning"])
