"""`eigenbatch diagnose`, `eigenbatch report` and `eigenbatch embed`."""

import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenbatch.cli.command import app, errors
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.missing import require
from eigenbatch.runs.directory import write_atomically
from eigenbatch.terminal import Terminal, chunk_progress, show_report

if TYPE_CHECKING:
    from torch import Tensor

    from eigenbatch.diagnose import Report


class Layout(StrEnum):
    """How pairs are contrasted."""

    paired = "paired"
    cross = "cross"


@app.command(epilog="Example: eigenbatch diagnose view1.npy --pairs view2.npy --tau 0.2")
def diagnose(
    context: typer.Context,
    embeddings: Annotated[Path, typer.Argument(help=".npy, .npz, .safetensors or .pt; (rows, d)")],
    pairs: Annotated[
        Path | None, typer.Option(help="Positives: row i belongs to row i of EMBEDDINGS.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Which array of a file with several; two, as a,b, are pairs."),
    ] = None,
    tau: Annotated[float, typer.Option(help="Softmax temperature.")] = 0.1,
    layout: Annotated[
        Layout, typer.Option(help="paired: SimCLR, all views; cross: CLIP, one side to the other.")
    ] = Layout.paired,
    tables: Annotated[bool, typer.Option("--tables", help="Print every table.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a web page with all tables and plots.")
    ] = None,
) -> None:
    """What embeddings on disk say about their gradient, and what to do about it.

    A file with two arrays such as z1 and z2, or image_embeds and text_embeds, is read as pairs.

    Exit code 0: healthy; 1: a warning; 2: unusable input.
    """
    with errors(context.obj):
        if html is not None:
            _check_page(html)
        report = _described(context, embeddings, pairs, key, tau, layout)
        show_report(report, context.obj.console(), tables=tables)
        if html is not None:
            write_atomically(html, _page(report, embeddings, pairs))
            context.obj.say(f"page: {html}")
    context.obj.result(report.plain())
    if not report.healthy:
        raise typer.Exit(1)


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
    with errors(terminal):
        if watch:
            from eigenbatch.report.serve import serve

            serve(runs, port=port, ready=lambda url: print(f"{url}  (Ctrl-C ends)", flush=True))
            return
        from eigenbatch.report.build import build

        build(runs, out)
    terminal.say(f"page: {out}")
    terminal.result({"page": str(out)})


@app.command(epilog="Example: eigenbatch embed runs/train pictures --out z.npy")
def embed(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Run directory of `eigenbatch train`.")],
    pictures: Annotated[Path, typer.Argument(help="Folder or zip of pictures, in any layout.")],
    out: Annotated[
        Path, typer.Option(help="Embeddings, .npy (names in a .txt beside it) or .safetensors.")
    ] = Path("embeddings.npy"),
    weights: Annotated[
        Path | None, typer.Option(help="Also write the encoder's weights as .safetensors.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that read pictures.", min=0, max=64)] = 0,
) -> None:
    """Embed a folder of pictures with the encoder that a run has trained."""
    terminal: Terminal = context.obj
    with errors(terminal):
        from eigenbatch.train.export import check_output, embed_pictures, export_encoder

        check_output(out)
        if weights is not None:
            if weights.suffix != ".safetensors":
                raise ParameterError(f"--weights must end with .safetensors, got {str(weights)!r}")
            check_output(weights)
            if weights.resolve() == out.resolve():
                raise ParameterError(f"--out and --weights are both {out}: name two files")
        terminal.say(f"embed: pictures in {pictures} with the encoder of {run}, to {out}")
        with chunk_progress(terminal.console()) as advance:
            found = embed_pictures(
                run, pictures, workers=workers,
                progress=lambda done, total: advance(done, total, "pictures"),
            )  # fmt: skip
        written = found.save(out)
        if weights is not None:
            export_encoder(run, weights)
            written.append(weights)
    shape = tuple(found.rows.shape)
    terminal.say(f"{shape[0]} pictures, {shape[1]} features: {', '.join(map(str, written))}")
    terminal.result({"shape": shape, "files": [str(path) for path in written]})


def _check_page(html: Path) -> None:
    """Raise if the page cannot be written, before anything is computed."""
    require("jinja2", "plotly")
    if html.is_dir() or str(html) in ("", "."):
        raise ParameterError(f"--html {html} is a folder: name a file, e.g. diagnosis.html")
    from eigenbatch.report.build import check_page

    check_page(html)
    html.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(html.parent, os.W_OK) or (html.exists() and not os.access(html, os.W_OK)):
        raise ParameterError(f"--html {html} cannot be written: choose another place")


def _given(context: typer.Context, *options: str) -> str:
    """Those of the options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return ", ".join(
        f"--{name}" for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )


PAIRED = (
    ("z1", "z2"), ("image_embeds", "text_embeds"), ("image_features", "text_features"),
    ("image", "text"), ("query", "key"), ("q", "k"), ("anchor", "positive"), ("anchors", "keys"),
    ("first", "second"),
)  # fmt: skip
"""Names under which files hold pairs."""


def _described(
    context: typer.Context,
    embeddings: Path,
    pairs: Path | None,
    key: str | None,
    tau: float,
    layout: Layout,
) -> "Report":
    from eigenbatch.core.contrast import positive_scalar
    from eigenbatch.diagnose import describe_cloud, describe_pairs

    positive_scalar(tau, "tau")
    names = _names(embeddings, pairs, key)
    sources = [(embeddings, name) for name in names]
    if pairs is not None:
        sources.append((pairs, None))
    elif key is None and len(names) == 2:
        context.obj.say(f"pairs: {names[0]} and {names[1]} of {embeddings}")
    rows = [_rows(*source) for source in sources]
    if len(rows) == 1:
        if unused := _given(context, "tau", "layout"):
            context.obj.say(f"note: without --pairs these change nothing: {unused}")
        return describe_cloud(rows[0])
    if rows[0].shape != rows[1].shape:
        told = (f"{path}{f', {name},' if name else ''}" for path, name in sources)
        first, second = (f"{t} {tuple(z.shape)}" for t, z in zip(told, rows, strict=True))
        raise ShapeError(
            f"shapes differ: {first} and {second}; row i of one is the positive of row i of the "
            "other"
        )
    return describe_pairs(rows[0], rows[1], tau, layout.value)


def _names(embeddings: Path, pairs: Path | None, key: str | None) -> list[str | None]:
    """Which arrays of the file are meant; two of them are pairs."""
    from eigenbatch.files import array_names

    if key is not None:
        names: list[str | None] = [one.strip() for one in key.split(",")]
        if len(names) > 2 or (pairs is not None and len(names) > 1):
            raise ParameterError(f"--key {key} names too many arrays: one, or two as pairs")
        return names
    found = array_names(embeddings)
    if pairs is None:
        return [*next((pair for pair in PAIRED if set(pair) <= set(found)), (None,))]
    return [None]


def _rows(path: Path, name: str | None) -> "Tensor":
    """The embeddings in a file; a row that has no direction is named with the file."""
    from eigenbatch.core.contrast import unit_rows
    from eigenbatch.files import load_embeddings

    z = load_embeddings(path, name)
    unit_rows(z, str(path))
    return z


def _page(report: "Report", embeddings: Path, pairs: Path | None) -> bytes:
    from eigenbatch.report.diagnosis import render_diagnosis

    content = asdict(report)
    return render_diagnosis(
        " and ".join(path.name for path in (embeddings, pairs) if path is not None),
        content["findings"],
        content["sections"],
        report.numbers,
        report.eigenvalues,
        content["similarities"],
    )
