"""One file per data set: its settings, and how it is read.

Every file of this folder is found: there is no list to keep. The files load no torch until data is
read, so that a wrong setting is reported at once.
"""

from importlib import import_module
from pkgutil import iter_modules


def load_all() -> None:
    """Import every file of this folder, which makes its settings known."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


load_all()
