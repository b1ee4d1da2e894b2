"""The `eigenbatch` command: parse and call; a command imports the heavy packages it needs."""

from eigenbatch.cli import checking, demo, looking, paper, planning, training
from eigenbatch.cli.command import app

__all__ = ["app", "checking", "demo", "looking", "paper", "planning", "training"]
