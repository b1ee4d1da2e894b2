"""A reading of a batch that cannot be read: every number is NaN, and the reason is kept."""

import math

import torch

from eigenbatch.core.axes import Axes
from eigenbatch.core.band import BatchBand, Method
from eigenbatch.core.cloud import Cloud
from eigenbatch.core.prediction import Outlook
from eigenbatch.core.variance import VarianceBand
from eigenbatch.monitor.parts import Gradient, Negatives, Softmax
from eigenbatch.monitor.reading import Reading

NAN = math.nan


def unreadable(reason: str, method: Method) -> Reading:
    """The reading whose only finding is "not finite"."""
    band = BatchBand(lower=NAN, measured=NAN, upper=NAN)
    empty = torch.zeros(0)
    return Reading(
        anchors=0,
        softmax=Softmax(
            tau=NAN,
            negatives=0,
            loss=NAN,
            chance_loss=NAN,
            miss=NAN,
            alignment=NAN,
            positive_similarity=NAN,
            effective_negatives=NAN,
        ),
        gradient=Gradient(
            force=NAN,
            geometry=NAN,
            certified=band,
            paper=band,
            method=method,
            variance=VarianceBand(coefficient=NAN, remainder=NAN, sigma=NAN, measured=NAN),
        ),
        cloud=_no_cloud(),
        axes=Axes(dominance=NAN, negative_share=NAN),
        negatives=Negatives(
            uniformity=NAN,
            harder_share=NAN,
            near_duplicate_rate=NAN,
            near_duplicate_isolation=NAN,
            solved_share=NAN,
            found_share=NAN,
            misplaced_share=NAN,
            copied_share=NAN,
            hard_miss=NAN,
            hard_force_ratio=NAN,
        ),
        outlook=Outlook(
            tau=NAN,
            negative_count=0,
            log_odds=empty,
            positive_similarity=empty,
            confusion=empty,
            concentration=empty,
            eigenvalues=empty,
            top=NAN,
            candidates=0,
            sampled=0,
        ),
        failure=reason,
    )


def _no_cloud() -> Cloud:
    return Cloud(
        count=0,
        dimension=0,
        sigma_hat=NAN,
        mean_sqnorm=NAN,
        participation_ratio=NAN,
        participation_ratio_unbiased=NAN,
        entropy_rank=NAN,
        stable_rank=NAN,
        centred_entropy_rank=NAN,
        isotropy_gap=NAN,
        isotropy_gap_unbiased=NAN,
        leading=(),
    )
