"""Data sets: what a run learns from, and what it is evaluated on.

One file per data set in `sets/`, settings and reading together; the rest of the room is shared.
"""

from eigenbatch.train.data import sets as sets
from eigenbatch.train.data.kinds import DataConfig as DataConfig
from eigenbatch.train.data.kinds import ImageConfig as ImageConfig
