"""Spectral bands, diagnoses and batch selection for contrastive training."""

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
