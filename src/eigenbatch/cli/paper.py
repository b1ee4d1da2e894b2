"""`eigenbatch reproduce`: the thin entry to the paper's claims."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenbatch.cli.command import app, errors, resumable
from eigenbatch.errors import ParameterError
from eigenbatch.terminal import Terminal, chunk_progress, show_claim, show_claims, show_verdict


class ScaleName(StrEnum):
    """How large a claim is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


@app.command(
    epilog="Example: eigenbatch reproduce temperature-law isotropy-floor --scale small --out runs/r"
)
def reproduce(
    context: typer.Context,
    claims: Annotated[
        list[str] | None, typer.Argument(help="Names of claims; `all` for every one.")
    ] = None,
    list_claims: Annotated[
        bool,
        typer.Option("--list", help="List the claims, or say more about those named, and stop."),
    ] = False,
    scale: Annotated[ScaleName, typer.Option(help="Seconds, minutes, or as printed.")] = (
        ScaleName.small
    ),
    data_dir: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder of the data; NAME=FOLDER for one data set of several, an unknown NAME "
            "lists them. Repeatable."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes of one thread each; all cores by default.", min=1)
    ] = None,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Compute nothing: judge the seeds that are complete."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished parts are kept.")] = Path(
        "runs/reproduce"
    ),
    table: Annotated[
        Path | None, typer.Option(help="Write all verdicts in --out as a Markdown page.")
    ] = None,
) -> None:
    """Check the paper's claims: run, judge by a criterion fixed beforehand, draw.

    Interrupted, run the same command to resume. Claims that train need data, except at scale
    smoke: at scale small Tiny-ImageNet-100 (imagenet100), CIFAR-10 (cifar10) or texts (multi30k,
    flickr8k, ...); what a claim lacks is named before anything is computed.
    """
    terminal: Terminal = context.obj
    with errors(terminal):
        from eigenbatch_paper.registry import NAMES as CLAIMS
        from eigenbatch_paper.registry import claim

        every = "all" in (claims or ()) or (list_claims and not claims)
        found = [claim(name) for name in (CLAIMS if every else claims or ())]
        if list_claims:
            if every:
                show_claims(found, terminal.console())
            else:
                for one in found:
                    show_claim(one, terminal.console())
            terminal.result([_listed(one) for one in found])
            return
        if not found and table is None:
            raise ParameterError("name a claim, or `all`; --list shows them")
        if finished:
            records = _judged(found, scale.value, out, terminal)
        else:
            folders = _folders(data_dir or [])
            records = _reproduced(found, scale.value, out, folders, jobs, terminal)
        if table is not None:
            from eigenbatch_paper.claim_table import write_table

            write_table(out, table, table.parent / "images" / "claims")
            terminal.say(f"page: {table}")
    terminal.result(records)


def _reproduced(
    claims: list[Any],
    scale: Any,
    out: Path,
    data: dict[str, Path],
    jobs: int | None,
    terminal: Terminal,
) -> list[dict[str, Any]]:
    from eigenbatch_paper.reproduce import reproduce as run

    console, records = terminal.console(), []
    with resumable(terminal), chunk_progress(console) as advance:
        for record in run(claims, scale, out, data=data, jobs=jobs, advance=advance):
            show_verdict(record, console)
            records.append(record)
    if claims:
        terminal.say(f"runs: {out / scale}")
    return records


def _judged(claims: list[Any], scale: Any, out: Path, terminal: Terminal) -> list[dict[str, Any]]:
    from eigenbatch_paper.reproduce import judge_finished

    records = list(judge_finished(claims, scale, out))
    if not records:
        raise ParameterError(f"no seed of these claims is complete under {out / scale}")
    for record in records:
        show_verdict(record, terminal.console())
    return records


def _folders(texts: list[str]) -> dict[str, Path]:
    """Folders by the name of their data set; "" for one that has no name."""
    from eigenbatch_paper.claim import DATA_SETS

    folders: dict[str, Path] = {}
    for text in texts:
        name, separator, folder = text.partition("=")
        named = separator and name in DATA_SETS
        if separator and not named and not Path(text).exists():
            raise ParameterError(
                f"--data-dir {text}: unknown data set {name!r}, choose from {', '.join(DATA_SETS)}"
            )
        key = name if named else ""
        if key in folders:
            raise ParameterError(f"--data-dir {text}: {key or 'a folder'} was given twice")
        folders[key] = Path(folder if named else text)
    return folders


def _listed(claim: Any) -> dict[str, Any]:
    names = ("name", "section", "statement", "printed", "criterion", "size", "minutes")
    return {name: getattr(claim, name) for name in names}
