"""Every threshold of every diagnosis, with its reason. They hold for any data, seed and size."""

COLLAPSED_SIGMA = 0.99
"""Paper: sigma-hat above this reliably preceded collapse."""

SATURATED_ALIGNMENT = 0.98
"""Paper: mean alignment above this is flagged; the floor (1 - rho)^2 / tau^2 is then gone."""

CHANCE_SHARE = 0.95
"""A loss above this share of log(N- + 1) tells anchors hardly more than guessing would."""

RANK_SHARE = 0.1
"""Centred entropy rank below this share of the attainable: nine directions in ten are unused."""

COMMON_SQNORM = 0.5
"""||zbar||^2 above this: more than half of an embedding's squared length is one shared vector."""

SOLVED_MISS = 0.01
"""Mean miss below this: positives already get 99 % of the probability."""

COPY_SIMILARITY = 0.999
"""Positives above this mean cosine are copies: augmentation and dropout leave far more."""

FEW_NEGATIVES = 3.0
"""Mean effective negatives below this: an anchor is pushed by one or two others only."""

ENOUGH_NEGATIVES = 24
"""With fewer negatives than this, having few effective ones says nothing about tau."""

UNIFORM_SHARE = 0.9
"""Effective negatives above this share of N-: the softmax is uniform."""

UNREACHABLE_SHARE = 0.9
"""Loss of perfect embeddings (positives at 1, negatives at 0) over chance: above this, tau alone
keeps the loss at chance."""

LOOK_ALIKE_RATE = 0.1
"""Anchors with a negative as similar as the mean positive."""

LOOK_ALIKE_ISOLATION = 1 / 3
"""A tail of hard negatives thins out: few of those near the positives reach them (measured: at most
0.27 in healthy runs on digits). Duplicates lie among the positives, half above their mean."""

RESOLVED_HARDER_SHARE = 0.05
"""Above this share of negatives beyond the positive, the run has not yet told samples apart and
look-alikes mean nothing."""

SELF_NEGATIVE_RATE = 0.05
"""Anchors that are pushed away from an older embedding of their own sample."""

UNIT_TOLERANCE = 0.01
"""Row norms further from 1 than this were not normalised; half precision stays well inside."""

LOGIT_ROUNDING = 0.1
"""Machine epsilon over tau: above this, half precision moves softmax weights by 10 %."""

EARLY_STEPS = 100
"""Until this step a run may still look as any encoder looks before training."""
