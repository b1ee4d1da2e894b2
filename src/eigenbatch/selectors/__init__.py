"""Selectors: which samples of a pool should share a batch."""

from eigenbatch.selectors.builder import BatchBuilder
from eigenbatch.selectors.constraints import NoNearDuplicates, OnePerGroup
from eigenbatch.selectors.difficulty import Blend, Clustered
from eigenbatch.selectors.diversity import frobenius_diversity, rayleigh_scores
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.pool import PoolBalanced, PoolMax, PoolMin
from eigenbatch.selectors.random import Random
from eigenbatch.selectors.schedule import EveryNth, Schedule
from eigenbatch.selectors.selector import Selector, select
from eigenbatch.selectors.signals import AfterBatches, IsotropyBelow, RankPlateau

__all__ = [
    "AfterBatches",
    "BatchBuilder",
    "Blend",
    "Clustered",
    "EveryNth",
    "Greedy",
    "IsotropyBelow",
    "NoNearDuplicates",
    "OnePerGroup",
    "PoolBalanced",
    "PoolMax",
    "PoolMin",
    "Random",
    "RankPlateau",
    "Schedule",
    "Selector",
    "frobenius_diversity",
    "rayleigh_scores",
    "select",
]
