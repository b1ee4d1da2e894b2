"""Pure functions on tensors, frozen records out: the mathematics of the paper, no state, no I/O."""

from eigenbatch.core.bands import (
    Band,
    BatchBand,
    QueueSample,
    VarianceBand,
    bernstein_radius,
    effective_rank_radius,
    gradient_band,
    queue_ceiling,
    sampling_inflation,
    subgaussian_radius,
    variance_band,
    variance_coefficient,
)
from eigenbatch.core.cloud import Cloud, cloud_of
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.downdate import leave_out_top_eigenvalues, negative_tops
from eigenbatch.core.infonce import Decomposition, InfoNCE, decompose, infonce
from eigenbatch.core.prediction import Outlook, Prediction
from eigenbatch.core.spectrum import (
    Moments,
    Spectrum,
    frobenius_diversity,
    isotropy_gap,
    moments,
    participation_ratio,
    rayleigh_scores,
    spectrum,
    trace_after_adding,
    whiten,
)

# Parts of the above, for studies that take them apart; their arguments are not checked.
from eigenbatch.core.certified import certified_bounds as certified_bounds  # isort: skip
from eigenbatch.core.downdate import eigenbasis as eigenbasis  # isort: skip
from eigenbatch.core.downdate import top_after_removal as top_after_removal  # isort: skip
from eigenbatch.core.contrast import unit_rows as unit_rows  # isort: skip
from eigenbatch.core.bands import theorem_terms as theorem_terms  # isort: skip

__all__ = [
    "Band",
    "BatchBand",
    "Cloud",
    "Contrast",
    "Decomposition",
    "InfoNCE",
    "Moments",
    "Outlook",
    "Prediction",
    "QueueSample",
    "Spectrum",
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
    "sampling_inflation",
    "spectrum",
    "subgaussian_radius",
    "trace_after_adding",
    "variance_band",
    "variance_coefficient",
    "whiten",
]
