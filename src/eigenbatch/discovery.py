"""Finding the files of a folder, so that a new one needs no entry in a list."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def modules_of(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import every module of a package, in order of their names.

    Args:
        package: name of the package, its `__name__`.
        path: where its modules are, its `__path__`.
    """
    return [import_module(f"{package}.{module.name}") for module in iter_modules(path)]
