"""Finding the modules of a room, so that a new file in it needs no entry in a list."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

T = TypeVar("T")


def defined_in(package: str, path: Iterable[str], kind: type[T]) -> Iterator[T]:
    """Objects of a type that the modules of a package define, module by module in order of name.

    Args:
        package: name of the package, its `__name__`.
        path: where its modules are, its `__path__`.
        kind: type of the objects.
    """
    for module in iter_modules(path):
        loaded = import_module(f"{package}.{module.name}")
        yield from (one for one in vars(loaded).values() if isinstance(one, kind))
