"""Spectral bands, diagnoses and batch selection for contrastive training."""

from eigenbatch.core.band import Band, BatchBand, QueueSample, gradient_band
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
from eigenbatch.core.spectrum import Spectrum, isotropy_gap, participation_ratio, spectrum
from eigenbatch.core.variance import VarianceBand, variance_band, variance_coefficient
from eigenbatch.core.whitening import whiten

__all__ = [
    "Band",
    "BatchBand",
    "Contrast",
    "Decomposition",
    "InfoNCE",
    "Moments",
    "NumericalWarning",
    "ParameterError",
    "QueueSample",
    "RowError",
    "ShapeError",
    "Spectrum",
    "VarianceBand",
    "bernstein_radius",
    "decompose",
    "effective_rank_radius",
    "gradient_band",
    "infonce",
    "isotropy_gap",
    "leave_out_top_eigenvalues",
    "moments",
    "negative_tops",
    "participation_ratio",
    "queue_ceiling",
    "sampling_inflation",
    "spectrum",
    "subgaussian_radius",
    "variance_band",
    "variance_coefficient",
    "whiten",
]
