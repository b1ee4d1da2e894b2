"""The `eigenbatch` command itself: its flags, and how every command ends."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eigenbatch.errors import ParameterError
from eigenbatch.missing import remedy
from eigenbatch.terminal import Terminal, complain
from eigenbatch.train.data import DataConfig
from eigenbatch.train.encoders import EncoderConfig
from eigenbatch.train.settings import Config

ANYWHERE = ("--quiet", "--json", "--debug")


class _Group(TyperGroup):
    """Takes the flags of all commands before or after the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, sorted(args, key=lambda word: word not in ANYWHERE))


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Spectral bands, diagnoses and batch selection for contrastive training.",
    epilog="Start with: eigenbatch demo. Exit codes: 0 done; 1 check or diagnose found something; "
    "2 unusable input; 130 interrupted.",
)


def known(kind: type[Config]) -> str:
    """Names that a component can have, for a help text."""
    return ", ".join(kind.options())


DataDir = Annotated[Path | None, typer.Option(help="Folder that holds the data.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting by its dotted name, e.g. method.tau=0.1; repeatable."),
]
Data = Annotated[
    str | None,
    typer.Option(help=f"{known(DataConfig)}; or the path of a folder or zip of pictures."),
]


Encoder = Annotated[
    str | None,
    typer.Option(help=f"{known(EncoderConfig)}; a function is written as package.module:function."),
]


def encoder_settings(encoder: str | None) -> list[str]:
    """What --encoder sets."""
    if encoder is None:
        return []
    if ":" in encoder:
        return ["encoder=function", f"encoder.function={encoder}"]
    return [f"encoder={encoder}"]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"eigenbatch {version('eigenbatch')}")
        raise typer.Exit


@app.callback()
def _flags(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    ranks = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK"))
    silent = any(rank != "0" for rank in ranks)  # only the first of several processes prints
    context.obj = Terminal(quiet=quiet or silent, json=json and not silent, debug=debug)


@contextmanager
def errors(terminal: Terminal) -> Iterator[None]:
    """Errors of one or two lines and exit code 2 for what the caller can correct."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if terminal.debug:
            raise
        complain(f"this command needs {missing.name}: {remedy(missing.name)}")
        raise typer.Exit(2) from missing
    except (ValueError, OSError) as reason:
        if terminal.debug:
            raise
        complain(str(reason))
        raise typer.Exit(2) from reason


@contextmanager
def interruptible(terminal: Terminal, out: Path) -> Iterator[None]:
    """Ctrl-C says how to resume, if there is anything to resume."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / "checkpoint.pt").exists():
            terminal.say(
                f"saved; resume with: eigenbatch train --resume --out {shlex.quote(str(out))}"
            )
        else:
            terminal.say("stopped before anything was saved")
        raise typer.Exit(130) from None


@contextmanager
def resumable(terminal: Terminal) -> Iterator[None]:
    """Ctrl-C says how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.say("Progress saved. Run the same command to resume.")
        raise typer.Exit(130) from None


def check_out(out: Path) -> None:
    """An empty --out would be the current folder."""
    if str(out) in ("", "."):
        raise ParameterError("--out must name a folder, e.g. runs/mine")
