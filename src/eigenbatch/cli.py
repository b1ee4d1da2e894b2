"""The `eigenbatch` command: parse and call."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eigenbatch.core.errors import ParameterError, RowError, ShapeError
from eigenbatch.core.precision import positive_scalar
from eigenbatch.demo import digit_views
from eigenbatch.diagnose import Report, describe_cloud, describe_pairs
from eigenbatch.files import FileFormatError, load_embeddings

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Spectral bands, diagnoses and batch selection for contrastive training.",
)

Html = Annotated[Path | None, typer.Option("--html", help="Also write the tables as a web page.")]
STYLES = {"critical": "bold red", "warning": "yellow", "info": "green"}


@app.callback()
def _commands() -> None:
    """Keep `diagnose` and `demo` commands of their own, however few there are."""


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
    try:
        report = _report(embeddings, pairs, tau)
        _show(report, html)
    except (FileFormatError, ShapeError, RowError, ParameterError, OSError) as reason:
        Console(stderr=True, soft_wrap=True).print(
            Text.assemble(("error: ", "bold red"), str(reason))
        )
        raise typer.Exit(2) from reason
    if not report.healthy:
        raise typer.Exit(1)


@app.command(epilog="Example: eigenbatch demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for embeddings and page.")] = Path("runs/demo"),
) -> None:
    """Diagnose two augmented views of scikit-learn's digits: real output in a few seconds."""
    import numpy as np

    out.mkdir(parents=True, exist_ok=True)
    first, second = out / "view1.npy", out / "view2.npy"
    for path, view in zip((first, second), digit_views(), strict=True):
        np.save(path, view.numpy())
    page = out / "diagnosis.html"
    command = f"eigenbatch diagnose {first} --pairs {second} --tau 0.1 --html {page}"
    Console().print(f"$ {command}\n", highlight=False, soft_wrap=True)
    _show(_report(first, second, 0.1), page)


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
