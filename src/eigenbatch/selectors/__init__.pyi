"""The public names of this room, once."""

from .auto import Auto as Auto
from .builder import BatchBuilder as BatchBuilder
from .constraints import OnePerGroup as OnePerGroup
from .difficulty import Blend as Blend
from .diversity import (
    frobenius_diversity as frobenius_diversity,
)
from .diversity import (
    rayleigh_scores as rayleigh_scores,
)
from .diversity import (
    trace_after_adding as trace_after_adding,
)
from .duplicates import NoNearDuplicates as NoNearDuplicates
from .greedy import Greedy as Greedy
from .names import selector_named as selector_named
from .neighbours import Neighbours as Neighbours
from .plateau import LossPlateau as LossPlateau
from .plateau import OnLossPlateau as OnLossPlateau
from .pool import PoolBalanced as PoolBalanced
from .pool import PoolMax as PoolMax
from .pool import PoolMin as PoolMin
from .pool import candidate_ranks as candidate_ranks
from .random import Random as Random
from .schedule import EveryNth as EveryNth
from .schedule import Schedule as Schedule
from .selector import Selector as Selector
from .selector import select as select
from .signals import (
    AfterBatches as AfterBatches,
)
from .signals import (
    IsotropyBelow as IsotropyBelow,
)
from .signals import (
    RankPlateau as RankPlateau,
)
