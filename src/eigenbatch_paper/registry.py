"""Every claim that can be run: the modules of `claims/`, found without importing them."""

from importlib import import_module
from pkgutil import iter_modules

from eigenbatch.errors import ParameterError
from eigenbatch_paper import claims
from eigenbatch_paper.claim import Claim

NAMES: tuple[str, ...] = tuple(
    sorted(module.name.replace("_", "-") for module in iter_modules(claims.__path__))
)


def all_claims() -> list[Claim]:
    """Every claim."""
    return [claim(name) for name in NAMES]


def claim(name: str) -> Claim:
    """The claim of that name; its module has underscores for the dashes."""
    if name not in NAMES:
        raise ParameterError(f"unknown claim {name!r}: choose from {', '.join(NAMES)}")
    module = import_module("eigenbatch_paper.claims." + name.replace("-", "_"))
    found: Claim = module.CLAIM
    return found
