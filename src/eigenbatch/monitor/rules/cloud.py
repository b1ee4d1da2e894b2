"""Findings that need embeddings only, no positives."""

from functools import partial

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.rule import SYMPTOMS, Answer, CloudRule


@partial(
    CloudRule,
    "collapsing",
    place=20,
    explains=(SYMPTOMS, "one dimension dominates", "false negatives", "identical views"),
)
def collapsing(cloud: Cloud) -> Answer | None:
    """All embeddings become one direction."""
    if cloud.sigma_hat <= limit.COLLAPSED_SIGMA:
        return None
    return Answer(
        severity="critical",
        evidence=f"sigma-hat {cloud.sigma_hat:.4f} > {limit.COLLAPSED_SIGMA}: all rows point "
        f"the same way (isotropic would be {1 / cloud.dimension:.4f})",
        advice="Stop the run. Restart from a checkpoint before sigma-hat rose, with a lower or "
        "warmed-up learning rate and less weight decay. If sigma-hat was this high from the first "
        "step, look for dead ReLUs, constant inputs or a missing normalisation layer.",
    )


@partial(
    CloudRule,
    "dimensional collapse",
    place=230,
    untrained=True,
    symptom=True,
    lasting=limit.COLLAPSE_LASTING,
    explains=("false negatives", "one dimension dominates"),
)
def dimensional_collapse(cloud: Cloud) -> Answer | None:
    """The embeddings vary, but only in a few directions."""
    least = min(limit.RANK, limit.RANK_SHARE * cloud.attainable_centred_rank)
    if cloud.centred_entropy_rank >= least:
        return None
    return Answer(
        severity="warning",
        evidence=f"centred entropy rank {cloud.centred_entropy_rank:.1f} < {least:.1f}: the "
        f"embeddings vary in about {max(1, round(cloud.centred_entropy_rank))} of "
        f"{cloud.dimension} directions",
        advice="Look for a bottleneck (a narrow layer, a rank-limited head), a learning rate or "
        "weight decay that is far too high, and inputs that hardly differ. Rank that was lost "
        "during the run does not come back: restart from an earlier checkpoint.",
    )


@partial(CloudRule, "mean-dominated", place=240, remark=True)
def mean_dominated(cloud: Cloud) -> Answer | None:
    """Most of every embedding is a vector they all share. A remark only."""
    if cloud.mean_sqnorm <= limit.COMMON_SQNORM:
        return None
    return Answer(
        severity="info",
        evidence=f"squared norm of the mean {cloud.mean_sqnorm:.3f} > {limit.COMMON_SQNORM}: "
        "most of every embedding is one shared vector",
        advice="Untrained encoders are like this; small batches, batches of similar samples and a "
        "low tau keep it for longer. Harmless while the loss falls. To compare embeddings, "
        "subtract their mean first.",
    )
