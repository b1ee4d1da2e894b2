"""`eigenbatch check`: is this loss the contrastive loss it should be?"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenbatch.cli.command import app, errors
from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.terminal import Terminal


@app.command(epilog="Example: eigenbatch check losses:nt_xent --tau 0.1")
def check(
    context: typer.Context,
    loss: Annotated[
        str, typer.Argument(help="package.module:loss, importable from the current folder.")
    ],
    tau: Annotated[float, typer.Option(help="The temperature that the loss should have.")] = 0.1,
    form: Annotated[
        str | None,
        typer.Option(help='Its parameters if their names do not tell, e.g. "z1, z2, labels".'),
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Processes to start for a loss that gathers; 3 tell most.", min=1)
    ] = 1,
    pairs: Annotated[
        int | None, typer.Option(help="The number of pairs if the loss takes no other.", min=3)
    ] = None,
    dim: Annotated[int, typer.Option(help="Length of the rows.", min=2)] = 32,
) -> None:
    """Say which contrastive loss a function is, and which mistakes it has.

    LOSS is a function, a module or a class without arguments; it needs no data and no training.
    Exit code 0: right, or not decided; 1: wrong; 2: unusable input.
    """
    terminal: Terminal = context.obj
    with errors(terminal):
        called = _imported(loss)
        from eigenbatch.monitor.check import check_loss

        try:
            report = check_loss(called, tau, form=form, pairs=pairs, dim=dim, processes=processes)
        except ArgumentTypeError as reason:
            raise ParameterError(str(reason)) from reason
    terminal.say(str(report))
    terminal.result(asdict(report))
    if report.right is False:
        raise typer.Exit(1)


def _imported(place: str) -> Callable[..., Any]:
    """The object at package.module:name; a class is made without arguments."""
    module, _, name = place.partition(":")
    if not (module and name):
        raise ParameterError(f"the loss must be written as package.module:loss, got {place!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        text = f"no module {missing.name!r} in {Path.cwd()} or among the installed packages"
        raise ParameterError(text) from missing
    for part in name.split("."):
        if not hasattr(found, part):
            raise ParameterError(f"{module} has no {name!r}")
        found = getattr(found, part)
    try:
        return found() if isinstance(found, type) else found  # type: ignore[no-any-return]
    except TypeError as reason:
        raise ParameterError(
            f"{place} cannot be made without arguments ({reason}): name a function or an object"
        ) from reason
