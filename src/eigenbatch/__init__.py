"""Spectral bands, diagnoses and batch selection for contrastive training.

Names are imported on first use: `import eigenbatch` alone does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenbatch.core.band import Band, BatchBand, QueueSample, gradient_band
    from eigenbatch.core.cloud import Cloud, cloud_of
    from eigenbatch.core.concentration import (
        bernstein_radius,
        effective_rank_radius,
        queue_ceiling,
        sampling_inflation,
        subgaussian_radius,
    )
    from eigenbatch.core.contrast import Contrast
    from eigenbatch.core.downdate import leave_out_top_eigenvalues, negative_tops
    from eigenbatch.core.errors import NumericalWarning, ParameterError, RowError, ShapeError
    from eigenbatch.core.infonce import Decomposition, InfoNCE, decompose, infonce
    from eigenbatch.core.moments import Moments, moments
    from eigenbatch.core.prediction import Outlook, Prediction
    from eigenbatch.core.spectrum import Spectrum, isotropy_gap, participation_ratio, spectrum
    from eigenbatch.core.variance import VarianceBand, variance_band, variance_coefficient
    from eigenbatch.core.whitening import whiten
    from eigenbatch.monitor.diagnosis import Diagnosis
    from eigenbatch.monitor.measure import read_batch
    from eigenbatch.monitor.monitor import SpectralMonitor
    from eigenbatch.monitor.reading import Reading
    from eigenbatch.monitor.stopping import StopOn
    from eigenbatch.sampling.cache import EmbeddingCache
    from eigenbatch.sampling.errors import CacheFileError, StateError
    from eigenbatch.sampling.indexed import IndexedDataset
    from eigenbatch.sampling.sampler import SpectralBatchSampler
    from eigenbatch.sampling.selection import Selection
    from eigenbatch.select.builder import BatchBuilder
    from eigenbatch.select.constraints import NoNearDuplicates, OnePerGroup
    from eigenbatch.select.difficulty import Blend, Clustered
    from eigenbatch.select.diversity import frobenius_diversity, rayleigh_scores
    from eigenbatch.select.greedy import Greedy
    from eigenbatch.select.pool import PoolBalanced, PoolMax, PoolMin
    from eigenbatch.select.random import Random
    from eigenbatch.select.schedule import (
        AfterBatches,
        IsotropyBelow,
        RankPlateau,
        Schedule,
        Sparingly,
    )
    from eigenbatch.select.selector import Selector, select

__all__ = [
    "AfterBatches",
    "Band",
    "BatchBand",
    "BatchBuilder",
    "Blend",
    "CacheFileError",
    "Cloud",
    "Clustered",
    "Contrast",
    "Decomposition",
    "Diagnosis",
    "EmbeddingCache",
    "Greedy",
    "IndexedDataset",
    "InfoNCE",
    "IsotropyBelow",
    "Moments",
    "NoNearDuplicates",
    "NumericalWarning",
    "OnePerGroup",
    "Outlook",
    "ParameterError",
    "PoolBalanced",
    "PoolMax",
    "PoolMin",
    "Prediction",
    "QueueSample",
    "Random",
    "RankPlateau",
    "Reading",
    "RowError",
    "Schedule",
    "Selection",
    "Selector",
    "ShapeError",
    "Sparingly",
    "SpectralBatchSampler",
    "SpectralMonitor",
    "Spectrum",
    "StateError",
    "StopOn",
    "VarianceBand",
    "bernstein_radius",
    "cloud_of",
    "decompose",
    "effective_rank_radius",
    "frobenius_diversity",
    "gradient_band",
    "infonce",
    "isotropy_gap",
    "leave_out_top_eigenvalues",
    "moments",
    "negative_tops",
    "participation_ratio",
    "queue_ceiling",
    "rayleigh_scores",
    "read_batch",
    "sampling_inflation",
    "select",
    "spectrum",
    "subgaussian_radius",
    "variance_band",
    "variance_coefficient",
    "whiten",
]

_HOMES = {
    "core.band": ("Band", "BatchBand", "QueueSample", "gradient_band"),
    "core.cloud": ("Cloud", "cloud_of"),
    "core.concentration": (
        "bernstein_radius",
        "effective_rank_radius",
        "queue_ceiling",
        "sampling_inflation",
        "subgaussian_radius",
    ),
    "core.contrast": ("Contrast",),
    "core.downdate": ("leave_out_top_eigenvalues", "negative_tops"),
    "core.errors": ("NumericalWarning", "ParameterError", "RowError", "ShapeError"),
    "core.infonce": ("Decomposition", "InfoNCE", "decompose", "infonce"),
    "core.moments": ("Moments", "moments"),
    "core.prediction": ("Outlook", "Prediction"),
    "core.spectrum": ("Spectrum", "isotropy_gap", "participation_ratio", "spectrum"),
    "core.variance": ("VarianceBand", "variance_band", "variance_coefficient"),
    "core.whitening": ("whiten",),
    "monitor.diagnosis": ("Diagnosis",),
    "monitor.measure": ("read_batch",),
    "monitor.monitor": ("SpectralMonitor",),
    "monitor.reading": ("Reading",),
    "monitor.stopping": ("StopOn",),
    "sampling.cache": ("EmbeddingCache",),
    "sampling.errors": ("CacheFileError", "StateError"),
    "sampling.indexed": ("IndexedDataset",),
    "sampling.sampler": ("SpectralBatchSampler",),
    "sampling.selection": ("Selection",),
    "select.builder": ("BatchBuilder",),
    "select.constraints": ("NoNearDuplicates", "OnePerGroup"),
    "select.difficulty": ("Blend", "Clustered"),
    "select.diversity": ("frobenius_diversity", "rayleigh_scores"),
    "select.greedy": ("Greedy",),
    "select.pool": ("PoolBalanced", "PoolMax", "PoolMin"),
    "select.random": ("Random",),
    "select.schedule": ("AfterBatches", "IsotropyBelow", "RankPlateau", "Schedule", "Sparingly"),
    "select.selector": ("Selector",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "select":  # the package, which can be called
        return import_module(f"{__name__}.select")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
