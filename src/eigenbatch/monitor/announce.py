"""Saying a finding once, where the user looks."""

import logging
import os
from collections.abc import Callable

import torch.distributed as dist

from eigenbatch.monitor.diagnosis import Diagnosis

logger = logging.getLogger("eigenbatch")

Say = Callable[[str], None]


class Announcer:
    """Says every finding of severity warning or higher once, and again only if it gets worse."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.say: Say = logger.warning
        self._said: set[str] = set()

    def __call__(self, diagnoses: tuple[Diagnosis, ...], step: int) -> None:
        """Report new findings; only the first process does."""
        for one in diagnoses:
            key = f"{one.severity}: {one.name}"
            if one.severity == "info" or key in self._said:
                continue
            self._said.add(key)
            if not self.quiet and is_first_process():
                self.say(sentence(one, step))

    def state_dict(self) -> list[str]:
        """What was said, so that a resumed run does not repeat it."""
        return sorted(self._said)

    def load_state_dict(self, said: list[str]) -> None:
        """Continue where `state_dict` was taken."""
        self._said = set(said)


def sentence(one: Diagnosis, step: int) -> str:
    """One finding as a line of a log."""
    return f"step {step}, {one.severity}: {one.name}. {one.evidence}. What to do: {one.advice}"


def is_first_process() -> bool:
    """Whether this process reports for all."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") in ("", "0")
