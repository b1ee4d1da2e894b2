"""The `eigenbatch` command: parse and call."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eigenbatch.core.errors import ParameterError
from eigenbatch.core.precision import positive_scalar
from eigenbatch.demo import digit_views
from eigenbatch.diagnose import Report, describe_cloud, describe_pairs
from eigenbatch.files import load_embeddings

if TYPE_CHECKING:
    from eigenbatch.experiments.compare import Comparison
    from eigenbatch.experiments.config import TrainConfig

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Spectral bands, diagnoses and batch selection for contrastive training.",
)

Html = Annotated[Path | None, typer.Option("--html", help="Also write the tables as a web page.")]
STYLES = {"critical": "bold red", "warning": "yellow", "info": "green"}


@app.callback()
def _commands() -> None:
    """Spectral bands, diagnoses and batch selection for contrastive training."""


@app.command(epilog="Example: eigenbatch diagnose view1.npy --pairs view2.npy --tau 0.2")
def diagnose(
    embeddings: Annotated[Path, typer.Argument(help=".npy, .npz, .safetensors or .pt; (rows, d)")],
    pairs: Annotated[
        Path | None, typer.Option(help="Positives: row i belongs to row i of EMBEDDINGS.")
    ] = None,
    tau: Annotated[float, typer.Option(help="Softmax temperature.")] = 0.1,
    html: Html = None,
) -> None:
    """What embeddings on disk say about their gradient, and what to do about it.

    Exit code 0: healthy; 1: a warning; 2: unusable input.
    """
    with _errors():
        report = _report(embeddings, pairs, tau)
        _show(report, html)
    if not report.healthy:
        raise typer.Exit(1)


@app.command(epilog="Example: eigenbatch train --recipe digits --selector greedy-64 --out runs/a")
def train(
    recipe: Annotated[str, typer.Option(help="Settings to start from.")] = "digits",
    selector: Annotated[
        str,
        typer.Option(help="random, p1, p2, p3, greedy-64, greedy-pool, clustered, blend, recipe."),
    ] = "random",
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    list_recipes: Annotated[bool, typer.Option(help="List the recipes and stop.")] = False,
) -> None:
    """Train a contrastive model with batches chosen by a selector; Ctrl-C saves."""
    console = Console()
    if list_recipes:
        _show_recipes(console)
        return
    with _errors():
        from eigenbatch.experiments.training import train as run

        config = _config(recipe, data_dir, [f"selector={selector}", *(setting or [])])
        try:
            directory = run(config, out, resume=resume, console=console)
        except KeyboardInterrupt:
            words = (shlex.quote(word) for word in sys.argv[2:] if word != "--resume")
            again = "eigenbatch train " + " ".join(words)
            console.print(f"saved; go on with: {again} --resume", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
        last = directory.read_metrics()[-1]
    for name in ("knn", "linear", "linear_5_labels", "rankme", "seconds"):
        console.print(f"{name:>16}  {last[name]:.4g}", highlight=False)
    console.print(f"run: {out}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: eigenbatch compare --selectors random,p3,greedy-64 --seeds 3")
def compare(
    selectors: Annotated[
        str, typer.Option(help="Comma-separated; the first is the baseline.")
    ] = "random,p3,greedy-64",
    seeds: Annotated[int, typer.Option(help="Runs of each selector, paired by seed.")] = 3,
    recipe: Annotated[str, typer.Option(help="Settings to start from.")] = "digits",
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; repeatable.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy that time is measured to.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are kept.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train several selectors with the same seeds and budget, and test the difference."""
    console = Console()
    with _errors():
        from eigenbatch.experiments.compare import compare as run

        config = _config(recipe, data_dir, setting or [])
        result = run(
            config,
            selectors.split(","),
            seeds,
            out,
            target=target,
            progress=lambda name, seed: console.print(f"{name}, seed {seed}", highlight=False),
            console=console,
        )
    _show_comparison(result, console)
    console.print(f"runs: {out}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: eigenbatch demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for embeddings, page and runs.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Diagnose embeddings of scikit-learn's digits, then compare three selectors on them."""
    import numpy as np

    out.mkdir(parents=True, exist_ok=True)
    first, second = out / "view1.npy", out / "view2.npy"
    for path, view in zip((first, second), digit_views(), strict=True):
        np.save(path, view.numpy())
    page = out / "diagnosis.html"
    command = f"eigenbatch diagnose {first} --pairs {second} --tau 0.1 --html {page}"
    Console().print(f"$ {command}\n", highlight=False, soft_wrap=True)
    _show(_report(first, second, 0.1), page)
    chosen, runs = "random,p3,greedy-64", out / "compare"
    command = f"eigenbatch compare --selectors {chosen} --seeds 2 --set epochs=6 --out {runs}"
    Console().print(f"\n$ {command}\n", highlight=False, soft_wrap=True)
    compare(chosen, 2, "digits", None, ["epochs=6"], None, runs)


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of one or two lines and exit code 2 for what the caller can mend."""
    try:
        yield
    except ModuleNotFoundError as missing:
        Console(stderr=True).print(
            f"error: this command needs {missing.name}: pip install 'eigenbatch[cli,train]'",
            highlight=False, markup=False,
        )  # fmt: skip
        raise typer.Exit(2) from missing
    except (ValueError, OSError) as reason:
        Console(stderr=True, soft_wrap=True).print(
            Text.assemble(("error: ", "bold red"), str(reason))
        )
        raise typer.Exit(2) from reason


def _config(recipe: str, data_dir: Path | None, settings: list[str]) -> "TrainConfig":
    from eigenbatch.experiments.config import recipes, with_settings

    known = recipes(data_dir or Path("data"))
    if recipe not in known:
        raise ParameterError(f"unknown recipe {recipe!r}: choose from {', '.join(known)}")
    given = [] if data_dir is None else [f"data_dir={data_dir}"]
    return with_settings(known[recipe].config, [*given, *settings])


def _show_recipes(console: Console) -> None:
    from eigenbatch.experiments.config import recipes

    table = Table("recipe", "setting")
    for name, recipe in recipes().items():
        table.add_row(name, recipe.summary)
    console.print(table)


def _show_comparison(result: "Comparison", console: Console) -> None:
    """One row a selector: means over seeds, and paired differences to the first."""
    seeds = len(result.entries[0].summaries)
    table = Table(
        title=f"{seeds} seeds, paired; target {result.target:.3f} kNN accuracy; ± is the 95 % CI",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for heading in ("selector", "kNN", "gain", "time", "saved", "R_eff", "sigma", "share"):
        table.add_column(heading, no_wrap=True)
    for entry in result.entries:
        runs, first = entry.summaries, entry is result.entries[0]
        gain, saved = entry.accuracy_gain, entry.time_saved
        collapsed = " !" if any(r.collapsed for r in runs) else ""
        table.add_row(
            entry.selector,
            f"{fmean(r.final_accuracy for r in runs):.3f}",
            "" if first else f"{gain.mean:+.3f}±{gain.half_width:.3f}",
            f"{fmean(r.seconds_to_target for r in runs):.1f} s",
            "" if first else f"{saved.mean:+.0%}±{saved.half_width:.0%}",
            f"{fmean(r.mean_rank for r in runs):.1f}",
            f"{fmean(r.peak_sigma for r in runs):.2f}{collapsed}",
            f"{fmean(r.selection_share for r in runs):.1%}",
        )
    console.print(table)
    console.print(
        "time and saved: to the target; sigma: peak top eigenvalue, ! if collapsed; share: of time "
        "spent on selection",
        style="dim",
    )
    if not any(e.accuracy_gain.significant or e.time_saved.significant for e in result.entries[1:]):
        console.print("No difference is significant at 95 %: more seeds, or no effect.")


def _report(embeddings: Path, pairs: Path | None, tau: float) -> Report:
    positive_scalar(tau, "tau")
    z = load_embeddings(embeddings)
    return describe_cloud(z) if pairs is None else describe_pairs(z, load_embeddings(pairs), tau)


def _show(report: Report, html: Path | None) -> None:
    console = Console(record=html is not None)
    for section in report.sections:
        table = Table("", "value", "meaning", title=section.title, title_justify="left")
        for line in section.lines:
            table.add_row(line.name, line.value, line.meaning)
        console.print(table, "")
    for one in report.diagnoses:
        console.print(Text(f"{one.severity}: {one.name}", STYLES[one.severity]))
        reasons = Table.grid(padding=(0, 2))
        reasons.add_row("", "because", Text(one.evidence))
        reasons.add_row("", "advice", Text(one.advice))
        console.print(reasons, "")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        console.save_html(str(html))
        Console().print(f"page: {html}", highlight=False, soft_wrap=True)
