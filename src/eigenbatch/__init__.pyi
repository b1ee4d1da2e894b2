"""The public names, once: `__init__.py` imports each of them on first use."""

from .core.band import Band as Band
from .core.band import gradient_band as gradient_band
from .core.contrast import Contrast as Contrast
from .core.downdate import leave_out_top_eigenvalues as leave_out_top_eigenvalues
from .core.infonce import InfoNCE as InfoNCE
from .core.infonce import infonce as infonce
from .core.moments import moments as moments
from .core.spectrum import (
    isotropy_gap as isotropy_gap,
)
from .core.spectrum import (
    participation_ratio as participation_ratio,
)
from .core.spectrum import (
    spectrum as spectrum,
)
from .core.variance import variance_band as variance_band
from .core.whitening import whiten as whiten
from .monitor.diagnosis import Diagnosis as Diagnosis
from .monitor.monitor import SpectralMonitor as SpectralMonitor
from .monitor.reading import Reading as Reading
from .monitor.stopping import StopOn as StopOn
from .runs.comparison import Comparison as Comparison
from .runs.comparison import compare as compare
from .runs.recorder import Recorder as Recorder
from .sampling.cache import EmbeddingCache as EmbeddingCache
from .sampling.indexed import IndexedDataset as IndexedDataset
from .sampling.sampler import SpectralBatchSampler as SpectralBatchSampler
from .selectors.auto import Auto as Auto
from .selectors.constraints import OnePerGroup as OnePerGroup
from .selectors.difficulty import Blend as Blend
from .selectors.duplicates import NoNearDuplicates as NoNearDuplicates
from .selectors.greedy import Greedy as Greedy
from .selectors.neighbours import Neighbours as Neighbours
from .selectors.pool import PoolBalanced as PoolBalanced
from .selectors.pool import PoolMax as PoolMax
from .selectors.pool import PoolMin as PoolMin
from .selectors.random import Random as Random
from .selectors.schedule import Schedule as Schedule
from .selectors.selector import select as select
from .train.export import load_encoder as load_encoder
