"""The `eigenbatch` command: parse and call. Heavy imports wait until a command needs them."""

from eigenbatch.cli import demo, looking, paper, training
from eigenbatch.cli.command import app

__all__ = ["app", "demo", "looking", "paper", "training"]
