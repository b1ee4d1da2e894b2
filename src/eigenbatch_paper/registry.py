"""Every claim that can be run, in the paper's order. A new one is a module and its name here."""

from importlib import import_module

from eigenbatch.errors import ParameterError
from eigenbatch_paper.claim import Claim

NAMES: tuple[str, ...] = (
    "synthetic-band",
    "temperature-law",
    "correlated-negatives",
    "anisotropy-coverage",
    "variance-band",
    "numerical-scale",
    "trace-update",
    "greedy-rationale",
    "p3-sanity",
    "matrix-concentration",
    "isotropy-floor",
    "pool-returns",
    "softmax-expansion",
    "second-order-remainder",
    "rank-estimators",
    "real-band",
    "whitening",
    "pool-policies",
    "greedy-cifar",
    "wall-clock",
    "pool-size",
    "practical-recipe",
    "isotropy-training",
    "alignment-gradient",
    "rank-accuracy",
    "moco-policies",
    "queue-band",
    "strong-baselines",
    "transfer",
    "augmentation",
    "similar-batches",
    "redundant-data",
    "coverage-modes",
    "plateau-time",
    "hard-batches",
    "guarded-batches",
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
