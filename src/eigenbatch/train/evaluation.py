"""When and on what a run is evaluated."""

from dataclasses import dataclass

from eigenbatch.train.data import ImageConfig
from eigenbatch.train.settings import Config, Count


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """Evaluations do not count as training time.

    Args:
        every: epochs between evaluations; the first is before training.
        every_steps: steps between evaluations, instead of epochs; for runs of few epochs.
        read_every: steps between readings of the monitor; None: two per epoch.
        transfer: other labelled images that the frozen features are probed on at the end.
    """

    every: Count = 1
    every_steps: Count | None = None
    read_every: Count | None = None
    transfer: ImageConfig | None = None
