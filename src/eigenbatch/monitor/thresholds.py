"""Every threshold of every diagnosis, with its reason.

Values in brackets were measured on 75 healthy runs (SimCLR, MoCo, two towers; batches of 8 to 512,
dimensions 32 to 1024, tau 0.05 to 0.5) and on runs broken on purpose. They are bars that healthy
runs of these kinds did not reach, not laws: docs/diagnosis.md lists what they cannot see.
"""

COLLAPSED_SIGMA = 0.99
"""Paper: sigma-hat above this reliably preceded collapse."""

SATURATED_ALIGNMENT = 0.98
"""Paper: mean alignment above this is flagged; the floor (1 - rho)^2 / tau^2 is then gone."""

CHANCE_SHARE = 0.85
"""Loss over log(N- + 1). Healthy runs stay below 0.81, a frozen tower at 0.86, no learning 0.9."""

FALLING_SHARE = 0.02
"""A loss whose mean over the last four readings is this share of chance below that of the four
before is falling: a single loss varies by 0.01 to 0.015, hence this difference by less than 0.01.
A momentum encoder of 0.999 falls by 0.04."""

RANK = 5.0
RANK_SHARE = 0.25
"""Centred entropy rank below the smaller of 5 and 25 % of the attainable. Healthy embeddings use 7
to 25 directions whatever their dimension is (lowest single reading 4.9); collapsed ones 1 to 4."""

COMMON_SQNORM = 0.5
"""||zbar||^2 above this: more than half of an embedding's squared length is one shared vector. Good
runs begin like that and lose it slowly with small batches or a low tau: a remark only."""

COPY_SIMILARITY = 0.999
"""Positives above this mean cosine are copies: augmentation and dropout leave far more."""

LOW_TAU = 0.03
"""Only below this temperature are few effective negatives a fault: at 0.05, the default of sentence
losses, healthy runs have 1.7 to 2.9."""

FEW_EFFECTIVE = 3.0
"""Mean effective negatives below this: an anchor is pushed by one or two others only."""

FEW_NEGATIVES = 24
"""Fewer negatives than this leave little to learn from (a batch of 8: 14) and judge no tau and no
pairs."""

UNIFORM_SHARE = 0.7
"""Effective negatives above this share of N-: the softmax hardly prefers any (healthy at most 0.62,
tau = 1 or 2 from 0.74)."""

LEAD = 1.1
"""1 / tau, the lead of a perfect positive's logit over that of an orthogonal negative. Below log 3
a negative at a right angle keeps more than a third of the positive's weight, whatever the encoder
does and however many there are (tau above 0.91; 0.5 is in use)."""

LOOK_ALIKE_RATE = 0.1
"""Anchors with a negative as similar as the mean positive. Alone it means nothing: the healthy
median is 77 %."""

LOOK_ALIKE_ISOLATION = 0.5
"""A tail of hard negatives thins out: few of those near the positives reach them (at most 0.48 in
healthy runs). Duplicates lie among the positives."""

RESOLVED_HARDER_SHARE = 0.05
"""Above this share of negatives beyond the positive, the run has not yet told samples apart and
look-alikes mean nothing."""

COPIED_SHARE = 0.05
"""Rows with an exact copy among their negatives: healthy 0, blank inputs 0.18."""

REPEATED_ID_SHARE = 0.05
"""Rows whose sample id is in the batch more than once."""

SELF_NEGATIVE_RATE = 0.5
"""Anchors with an older key of their own sample in the queue: up to 0.42 at the border of epochs,
where it does no harm; all of them when the queue is longer than the data."""

QUEUE_LIKENESS = 0.9
"""Cosine of the second moments of queue and keys: healthy at least 0.95, random 0.1 to 0.3, rarely
refreshed 0.8 to 0.88, key encoder without momentum 0.87 to 0.94."""

SOLVED_SHARE = 0.97
"""Anchors whose positive beats every negative: healthy at most 0.957, a shortcut 1.0."""

SOLVED_NEGATIVES = 256
"""Beating fewer negatives than this is easier: the share is then raised to the power 256 / N-."""

SOLVED_FAST = 110
"""Two towers that solve the task by this step found a shortcut (1.0 from step 25 on). Healthy ones
take 150 steps and more: word bags on translations at 2e-3, a high rate, 0.81 of anchors at step 57
and 0.94 at step 113."""

EASY_MISS = 0.3
HARDER_FORCE = 2.0
"""Below this miss, and where harder batches at least double the force, selection can pay."""

HARD_MISS = 0.5
"""Above it no setting gained where less than `EASY_SHARE` of the positives beat all negatives; code
search gained 1.3 points at a miss of 0.32."""

EASY_SHARE = 0.95
LARGER_FORCE = 1.2
"""So it can where this share of positives beats all negatives and the force still grows by this: a
large temperature makes the miss large, not the batch hard. Translations at tau 0.2 and 0.3: miss
0.56 and 0.81, share 1.0 and 0.99, force 2.0x and 1.3x, +2.5 points of MRR; at tau 0.5 force 1.08x,
+0.6. SimCLR on pictures: share 0.3 to 0.5, no policy changed the end."""

MISPLACED_SHARE = 0.03
"""Mean of the last readings: 10 % wrong pairs 0.05, 30 % 0.15."""

MISPLACED_READINGS = 3
"""Readings before that mean is trusted."""

MISPLACED_RATIO = 0.3
"""Misplaced positives over those between the nearest tenth and the middle, without wrong pairs:
hard positives thin out, healthy at most 0.3, batches of neighbours 0.4. A share w of wrong pairs
ranks at random: misplaced = 0.5 w + hard, between = 0.4 w + hard / 0.3. Three standard errors are
left for chance: small batches hold few pairs."""

FOUND_SHARE = 0.5
"""Once most positives rank among the top tenth, the run tells samples apart."""

FOUND_SOME = 0.3
"""Misplaced positives mean something once this many are found. If half of the pairs are wrong, 0.55
can be found at most."""

STILL = 2.5
"""Movement since the first reading over sampling noise: 1 in expectation when nothing moves (0.2 to
2.2). It grows with the batch: healthy 3.2 to 6 from step 100 on with 64 pairs, 4 to 460 above."""

TRAINED = 0.8
"""Positives found at the first reading: untrained encoders at most 0.6, trained ones 0.84 to 1. A
trained one need not move: at a third of the rate, digits moved by 1.1 in 300 steps."""

LONG_QUEUE = 8
"""Batches in a queue from which on most negatives are its keys; hard negatives are fewer."""

STILL_ROWS = 64
"""Rows needed for that ratio to settle."""

MOMENTUM_STEPS = 300
"""A run with a momentum encoder learns more slowly: so many steps count as its first."""

MOMENTUM_STILL = 2.0
MOMENTUM_STILL_STEPS = 1000
"""A momentum encoder is given so many steps to follow, and needs to move less: at 0.999 it was
measured at 1.5 to 2.7 after 300 steps."""

REPETITION = 0.5
"""Likeness of row i to row i of the reading before: healthy at most 0.17, same batch 0.77."""

LOSS_TOLERANCE = 0.02
LOSS_ROUNDING = 0.01
"""The user's loss may differ by 2 %, or by 0.01 nats (bfloat16: 0.001)."""

NO_NEGATIVE_ENTRIES = 0.001
"""Share of negative entries: healthy 0.42 to 0.52, after a ReLU 0."""

DOMINANCE = 6.0
"""d max E[z_k^2]: healthy at most 3.8, one dominating coordinate 12 to 20. More is needed where the
leading direction is strong, see `random_dominance`."""

MODALITY_GAP = 0.5
"""Squared distance of the towers' means. Common in well trained models too: a remark only."""

UNIT_TOLERANCE = 0.01
"""Row norms further from 1 than this were not normalised; half precision stays well inside."""

LOGIT_ROUNDING = 0.3
"""Machine epsilon over tau. bfloat16 at 0.07 (0.11) did no harm in any measured run."""

EARLY_STEPS = 100
"""Until this step a run may still look as any encoder looks before training."""

LASTING = 2
"""Readings in a row before a finding is a warning; a single batch may be odd."""

SOLVED_LASTING = 3
"""The same for "task solved"."""

COLLAPSE_LASTING = 4
"""The same for "dimensional collapse": batches of neighbours lie in few directions too, now these
and then others, while a collapsed encoder has a low rank in every batch."""
