"""The public names of this room, once."""

from .comparison import (
    Comparison as Comparison,
)
from .comparison import (
    Entry as Entry,
)
from .comparison import (
    compare as compare,
)
from .comparison import (
    load_comparison as load_comparison,
)
from .directory import RunDirectory as RunDirectory
from .directory import read_object as read_object
from .directory import write_atomically as write_atomically
from .metrics import Metrics as Metrics
from .metrics import Series as Series
from .metrics import read_metrics as read_metrics
from .paired import (
    LineFit as LineFit,
)
from .paired import (
    PairedDifference as PairedDifference,
)
from .paired import (
    bootstrap_interval as bootstrap_interval,
)
from .paired import (
    line_fit as line_fit,
)
from .paired import (
    paired_difference as paired_difference,
)
from .provenance import commit as commit
from .reader import (
    RunRecord as RunRecord,
)
from .reader import (
    find_runs as find_runs,
)
from .reader import (
    flat as flat,
)
from .reader import (
    read_run as read_run,
)
from .recorder import Recorder as Recorder
from .summary import (
    Summary as Summary,
)
from .summary import (
    default_target as default_target,
)
from .summary import (
    first_crossing as first_crossing,
)
from .summary import (
    summarise as summarise,
)
