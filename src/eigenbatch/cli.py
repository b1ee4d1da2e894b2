"""The `eigenbatch` command: parse and call. Heavy imports wait until a command needs them."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from eigenbatch.errors import ParameterError
from eigenbatch.integrations.missing import remedy
from eigenbatch.terminal import (
    Terminal,
    chunk_progress,
    complain,
    live_runs,
    show_claims,
    show_comparison,
    show_report,
    show_verdict,
)

if TYPE_CHECKING:
    from eigenbatch.diagnose import Report
    from eigenbatch.experiments.config import TrainConfig

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
    epilog="Start with: eigenbatch demo. Exit codes: 0 done; 1 diagnose found something; "
    "2 unusable input; 130 interrupted.",
)

DataDir = Annotated[Path | None, typer.Option(help="Folder that holds the data.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; repeatable.")
]
Selector = Annotated[
    str, typer.Option(help="random, p1, p2, p3, greedy-64, greedy-pool, clustered, blend, recipe.")
]


class ScaleName(StrEnum):
    """How large a claim is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


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
    silent = any(rank != "0" for rank in ranks)  # of several processes, the first one speaks
    context.obj = Terminal(quiet=quiet or silent, json=json and not silent, debug=debug)


@app.command(epilog="Example: eigenbatch diagnose view1.npy --pairs view2.npy --tau 0.2")
def diagnose(
    context: typer.Context,
    embeddings: Annotated[Path, typer.Argument(help=".npy, .npz, .safetensors or .pt; (rows, d)")],
    pairs: Annotated[
        Path | None, typer.Option(help="Positives: row i belongs to row i of EMBEDDINGS.")
    ] = None,
    tau: Annotated[float, typer.Option(help="Softmax temperature.")] = 0.1,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write the tables as a web page.")
    ] = None,
) -> None:
    """What embeddings on disk say about their gradient, and what to do about it.

    Exit code 0: healthy; 1: a warning; 2: unusable input.
    """
    with _errors(context.obj):
        report = _described(embeddings, pairs, tau)
        _show(report, html, context.obj)
    context.obj.result(asdict(report) | {"healthy": report.healthy})
    if not report.healthy:
        raise typer.Exit(1)


@app.command(epilog="Example: eigenbatch train --data cifar10 --data-dir data --selector greedy-64")
def train(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Option(help="digits, cifar10, cifar100, or a folder or zip of pictures.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="simclr, moco or supcon.")] = None,
    selector: Selector = "random",
    recipe: Annotated[
        str | None, typer.Option(help="Settings to start from; by default those that fit --data.")
    ] = None,
    data_dir: DataDir = None,
    setting: Settings = None,
    devices: Annotated[int, typer.Option(help="Processes (DDP), or GPUs.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    list_recipes: Annotated[bool, typer.Option(help="List the recipes and stop.")] = False,
) -> None:
    """Train a contrastive model with batches chosen by a selector; Ctrl-C saves."""
    terminal: Terminal = context.obj
    if list_recipes:
        _list_recipes(terminal)
        return
    with _errors(terminal):
        chosen = [f"selector={selector}"] + ([f"method={method}"] if method else [])
        config = _config(recipe, data, data_dir, [*chosen, *(setting or [])])
        from eigenbatch.experiments.training import train as run

        try:
            directory = run(config, out, resume=resume, console=terminal.console(), devices=devices)
        except KeyboardInterrupt:
            words = (shlex.quote(word) for word in sys.argv[1:] if word != "--resume")
            terminal.say(f"saved; go on with: eigenbatch {' '.join(words)} --resume")
            raise typer.Exit(130) from None
        last = directory.read_metrics()[-1]
    for name, value in last.items():
        if name not in ("step", "epoch", "finished"):
            terminal.say(f"{name:>16}  {value:.4g}")
    terminal.say(f"run: {out}")
    terminal.result(last | {"run": str(out)})


@app.command(epilog="Example: eigenbatch compare --selectors random,p3,greedy-64 --seeds 3")
def compare(
    context: typer.Context,
    selectors: Annotated[
        str, typer.Option(help="Comma-separated; the first is the baseline.")
    ] = "random,p3,greedy-64",
    seeds: Annotated[int, typer.Option(help="Runs of each selector, paired by seed.")] = 3,
    data: Annotated[
        str | None, typer.Option(help="digits, cifar10, cifar100, or a folder or zip of pictures.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Settings to start from.")] = None,
    data_dir: DataDir = None,
    setting: Settings = None,
    target: Annotated[float | None, typer.Option(help="Accuracy that time is measured to.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are kept.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train several selectors with the same seeds and budget, and test the difference.

    Interrupted, the same command goes on where it stopped.
    """
    terminal: Terminal = context.obj
    console = terminal.console()
    names = [name.strip() for name in selectors.split(",")]
    with _errors(terminal):
        config = _config(recipe, data, data_dir, setting or [])
        from eigenbatch.experiments.compare import compare as run

        with _resumable(terminal), live_runs(console, names, seeds) as progress:
            result = run(
                config, names, seeds, out, target=target, progress=progress, console=console
            )
    show_comparison(result, console)
    terminal.say(f"runs: {out}")
    terminal.result(asdict(result))


@app.command(
    epilog="Example: eigenbatch reproduce temperature-law isotropy-floor --scale small --out runs/r"
)
def reproduce(
    context: typer.Context,
    claims: Annotated[
        list[str] | None, typer.Argument(help="Names of claims; `all` for every one.")
    ] = None,
    list_claims: Annotated[bool, typer.Option("--list", help="List the claims and stop.")] = False,
    scale: Annotated[ScaleName, typer.Option(help="Seconds, minutes, or as printed.")] = (
        ScaleName.small
    ),
    data_dir: DataDir = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes of one thread each; all cores by default.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished parts are kept.")] = Path(
        "runs/reproduce"
    ),
    table: Annotated[
        Path | None, typer.Option(help="Write all verdicts in --out as a Markdown page.")
    ] = None,
) -> None:
    """Check the paper's claims: run, judge by a criterion fixed beforehand, draw.

    Interrupted, the same command goes on where it stopped. CIFAR-10 for training claims is looked
    for in --data-dir.
    """
    terminal: Terminal = context.obj
    with _errors(terminal):
        from eigenbatch.experiments.registry import NAMES, claim

        wanted = NAMES if list_claims or "all" in (claims or ()) else claims or ()
        found = [claim(name) for name in wanted]
        if list_claims:
            show_claims(found, terminal.console())
            terminal.result([_listed(one) for one in found])
            return
        if not found and table is None:
            raise ParameterError("name a claim, or `all`; --list shows them")
        records = _reproduced(found, scale.value, out, data_dir, jobs, terminal)
        if table is not None:
            from eigenbatch.experiments.claim_table import write_table

            write_table(out, table, table.parent / "images" / "claims")
            terminal.say(f"page: {table}")
    terminal.result(records)


@app.command(epilog="Example: eigenbatch report runs/compare --out report.html")
def report(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve on 127.0.0.1 and renew while training runs.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="Port for --watch; 0 takes a free one.", min=0, max=65535)
    ] = 0,
) -> None:
    """Turn runs into one page that opens offline, or follow them while they train."""
    terminal: Terminal = context.obj
    with _errors(terminal):
        if watch:
            from eigenbatch.report.serve import serve

            serve(runs, port=port, ready=lambda url: print(f"{url}  (Ctrl-C ends)", flush=True))
            return
        from eigenbatch.report.build import build

        build(runs, out)
    terminal.say(f"page: {out}")
    terminal.result({"page": str(out)})


@app.command(epilog="Example: eigenbatch demo --out runs/demo")
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for embeddings, pages and runs.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Diagnose embeddings of scikit-learn's digits, then compare three selectors on them."""
    terminal: Terminal = context.obj
    with _errors(terminal):
        import numpy as np

        from eigenbatch.demo import digit_views

        out.mkdir(parents=True, exist_ok=True)
        first, second = out / "view1.npy", out / "view2.npy"
        for path, view in zip((first, second), digit_views(), strict=True):
            np.save(path, view.numpy())
        page = out / "diagnosis.html"
        terminal.say(f"$ eigenbatch diagnose {first} --pairs {second} --tau 0.1 --html {page}\n")
        _show(_described(first, second, 0.1), page, terminal)
    runs, chosen = out / "compare", "random,p3,greedy-64"
    terminal.say(
        f"\n$ eigenbatch compare --selectors {chosen} --seeds 2 --set epochs=6 --out {runs}\n"
    )
    compare(context, chosen, 2, None, None, None, ["epochs=6"], None, runs)
    page = out / "report.html"
    terminal.say(f"\n$ eigenbatch report {runs} --out {page}\n")
    report(context, [runs], page)


@contextmanager
def _errors(terminal: Terminal) -> Iterator[None]:
    """Errors of one or two lines and exit code 2 for what the caller can mend."""
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
def _resumable(terminal: Terminal) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.say("what is done is kept: the same command goes on from here")
        raise typer.Exit(130) from None


def _config(
    recipe: str | None, data: str | None, data_dir: Path | None, settings: list[str]
) -> "TrainConfig":
    """The recipe's config with what was asked for on top; a path as `data` means its images."""
    from eigenbatch.experiments.config import DATA, recipes, with_settings

    given = [] if data_dir is None else [f"data_dir={data_dir}"]
    if data is not None and data not in DATA:
        if not Path(data).exists():
            raise ParameterError(f"--data {data}: neither {', '.join(DATA)} nor a folder or zip")
        given, data = [f"data_dir={data}"], "folder"
    if data is not None:
        given.append(f"data={data}")
    fitting = {None: "digits", "digits": "digits", "folder": "folder-cpu"}
    recipe = recipe or fitting.get(data, "cifar10-cpu")
    known = recipes(data_dir or Path("data"))
    if recipe not in known:
        raise ParameterError(f"unknown recipe {recipe!r}: choose from {', '.join(known)}")
    return with_settings(known[recipe].config, [*given, *settings])


def _list_recipes(terminal: Terminal) -> None:
    from eigenbatch.experiments.config import recipes

    table = Table("recipe", "setting")
    for name, recipe in recipes().items():
        table.add_row(name, recipe.summary)
    terminal.console().print(table)
    terminal.result({name: recipe.summary for name, recipe in recipes().items()})


def _described(embeddings: Path, pairs: Path | None, tau: float) -> "Report":
    from eigenbatch.core.precision import positive_scalar
    from eigenbatch.diagnose import describe_cloud, describe_pairs
    from eigenbatch.files import load_embeddings

    positive_scalar(tau, "tau")
    z = load_embeddings(embeddings)
    return describe_cloud(z) if pairs is None else describe_pairs(z, load_embeddings(pairs), tau)


def _show(report: "Report", html: Path | None, terminal: Terminal) -> None:
    console = terminal.console(record=html is not None)
    show_report(report, console)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        console.save_html(str(html))
        terminal.say(f"page: {html}")


def _reproduced(
    claims: list[Any],
    scale: Any,
    out: Path,
    data_dir: Path | None,
    jobs: int | None,
    terminal: Terminal,
) -> list[dict[str, Any]]:
    from eigenbatch.experiments.reproduce import reproduce as run

    console, records = terminal.console(), []
    with _resumable(terminal), chunk_progress(console) as advance:
        for record in run(claims, scale, out, data_dir=data_dir, jobs=jobs, advance=advance):
            show_verdict(record, console)
            records.append(record)
    if claims:
        terminal.say(f"runs: {out / scale}")
    return records


def _listed(claim: Any) -> dict[str, Any]:
    names = ("name", "section", "statement", "printed", "criterion", "size", "minutes")
    return {name: getattr(claim, name) for name in names}
