"""The public names, once: `__init__.py` imports each of them on first use."""

from .batches.auto import Auto as Auto
from .batches.cache import EmbeddingCache as EmbeddingCache
from .batches.greedy import Blend as Blend
from .batches.greedy import Greedy as Greedy
from .batches.neighbours import Neighbours as Neighbours
from .batches.planner import Random as Random
from .batches.planner import select as select
from .batches.pools import PoolBalanced as PoolBalanced
from .batches.pools import PoolMax as PoolMax
from .batches.pools import PoolMin as PoolMin
from .batches.sampler import IndexedDataset as IndexedDataset
from .batches.sampler import SpectralBatchSampler as SpectralBatchSampler
from .batches.schedule import Schedule as Schedule
from .core.bands import Band as Band
from .core.bands import gradient_band as gradient_band
from .core.bands import variance_band as variance_band
from .core.contrast import Contrast as Contrast
from .core.downdate import leave_out_top_eigenvalues as leave_out_top_eigenvalues
from .core.infonce import InfoNCE as InfoNCE
from .core.infonce import infonce as infonce
from .core.spectrum import (
    isotropy_gap as isotropy_gap,
)
from .core.spectrum import moments as moments
from .core.spectrum import (
    participation_ratio as participation_ratio,
)
from .core.spectrum import (
    spectrum as spectrum,
)
from .core.spectrum import whiten as whiten
from .monitor.check import check_loss as check_loss
from .monitor.findings import Finding as Finding
from .monitor.monitor import SpectralMonitor as SpectralMonitor
from .monitor.monitor import StopOn as StopOn
from .monitor.reading import Reading as Reading
from .runs.comparison import Comparison as Comparison
from .runs.comparison import compare as compare
from .runs.recorder import Recorder as Recorder
from .train.export import load_encoder as load_encoder
