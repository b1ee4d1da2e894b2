"""`eigenbatch plan`: the order of an epoch, from embeddings in files."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from eigenbatch.cli.command import app, errors, resumable
from eigenbatch.errors import ParameterError
from eigenbatch.missing import require
from eigenbatch.terminal import Terminal, chunk_progress

if TYPE_CHECKING:
    from eigenbatch.batches.offline import OfflinePlan


@app.command(epilog="Example: eigenbatch plan anchors.npy keys.npy --batch-size 256 --out plan.npy")
def plan(
    context: typer.Context,
    embeddings: Annotated[Path, typer.Argument(help="Embeddings (N, d): .npy, .safetensors, ...")],
    keys: Annotated[
        Path | None, typer.Argument(help="The other side of every pair, in the same order.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch.", min=2)] = 256,
    out: Annotated[
        Path, typer.Option(help="The plan, .npy: a row of sample numbers per batch. PNG beside it.")
    ] = Path("plan.npy"),
    tau: Annotated[float, typer.Option(help="Temperature of the loss.")] = 0.07,
    groups: Annotated[
        Path | None, typer.Option(help=".npy of N integers: samples of one group are kept apart.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0)] = 0,
    horizon: Annotated[
        int, typer.Option(help="Samples planned at once: a bound on memory.", min=2)
    ] = 262_144,
) -> None:
    """Plan an epoch of hard batches from any model's embeddings: for retrieval.

    Every sample stands in the plan once. Where features are judged by classes (pictures, kNN,
    linear probe) hard batches lose: take random ones.
    """
    terminal: Terminal = context.obj
    with errors(terminal), resumable(terminal):
        require("matplotlib")
        picture = out.with_suffix(".png")
        if out.suffix != ".npy":
            raise ParameterError(f"--out must end with .npy, got {str(out)!r}")
        for file in (out, picture):
            if file.exists():
                raise ParameterError(f"{file} exists already: move it, or choose another --out")
        if not out.parent.is_dir():
            raise ParameterError(f"{out.parent} is no folder: create it, or choose another --out")
        import os

        import torch

        from eigenbatch.batches.offline import plan_files

        known = None if groups is None else _integers(groups)
        partial = out.with_name(f".{out.stem}.{os.getpid()}.npy")
        try:
            with chunk_progress(terminal.console()) as advance:
                made = plan_files(
                    embeddings, keys, batch_size=batch_size, tau=tau, seed=seed, horizon=horizon,
                    groups=None if known is None else torch.from_numpy(known), out=partial,
                    progress=lambda done, total: advance(done, total, "samples"),
                )  # fmt: skip
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
        _draw(made, picture, pairs=keys is not None)
    what = "predicted miss" if keys is not None else "mean cosine within a batch"
    planned, random = fmean(made.planned), fmean(made.random)
    terminal.say(f"{what}: {planned:.3f} planned, {random:.3f} in random batches")
    if made.left_out:
        terminal.say(f"{made.left_out} samples do not fill a batch and are left out")
    if made.together:
        terminal.say(f"{made.together} samples stand with a near-duplicate or one of their group")
    count, n = made.batches.shape
    terminal.say(f"{count:,} batches of {n}: {out}, picture {picture}")
    terminal.result(
        {
            "batches": count, "batch_size": n, "planned": planned, "random": random,
            "left_out": made.left_out, "together": made.together, "out": str(out),
        }
    )  # fmt: skip


def _integers(path: Path) -> "np.ndarray[Any, Any]":  # type: ignore[name-defined]  # noqa: F821
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as reason:
        raise ParameterError(f"{path} cannot be read as .npy: {reason}") from None
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ParameterError(f"{path} must hold one integer per sample, got {found.dtype}")
    return found.astype(np.int64)


def _draw(plan: "OfflinePlan", path: Path, *, pairs: bool) -> None:
    """Histograms of planned and of random batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained", dpi=120)
    axes = figure.subplots()
    low, high = (end(plan.random + plan.planned) for end in (min, max))
    bins = [low + (high - low) * i / 60 for i in range(61)]
    for values, label, colour in (
        (plan.random, "random batches", "#777777"), (plan.planned, "planned batches", "#0072B2"),
    ):  # fmt: skip
        axes.hist(values, bins, alpha=0.7, color=colour, label=label)
    axes.set_xlabel("predicted miss of a batch" if pairs else "mean cosine within a batch")
    axes.set_ylabel("batches")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
