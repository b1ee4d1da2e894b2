"""`eigenbatch train` and `eigenbatch compare`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from eigenbatch.cli.command import (
    Data,
    DataDir,
    Encoder,
    Settings,
    app,
    check_out,
    encoder_settings,
    errors,
    interruptible,
    known,
    resumable,
)
from eigenbatch.errors import ParameterError
from eigenbatch.terminal import Terminal, live_runs, show_comparison, show_findings
from eigenbatch.train.batches import NAMES
from eigenbatch.train.methods import MethodConfig

SELECTORS = "How batches are chosen: " + ", ".join(one.form for one in NAMES.values()) + "."


Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
BatchSize = Annotated[int | None, typer.Option(help="Samples per batch, over all processes.")]
Tau = Annotated[float | None, typer.Option(help="Softmax temperature.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Of everything random; of compare the first.")]


def _set(
    epochs: float | None,
    batch_size: int | None,
    tau: float | None,
    lr: float | None,
    seed: int | None,
) -> list[str]:
    """The settings that options stand for."""
    named = {
        "budget.epochs": None if epochs is None else f"{epochs:g}", "method.tau": tau,
        "batches.batch_size": batch_size, "optimizer.lr": lr, "seed": seed,
    }  # fmt: skip
    return [f"{name}={value}" for name, value in named.items() if value is not None]


@app.command(epilog="Example: eigenbatch train --data cifar10 --data-dir data --selector greedy-64")
def train(
    context: typer.Context,
    data: Data = None,
    method: Annotated[str | None, typer.Option(help=f"{known(MethodConfig)}.")] = None,
    encoder: Encoder = None,
    selector: Annotated[str | None, typer.Option(help=SELECTORS)] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Settings to start from; by default those that fit --data.")
    ] = None,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    tau: Tau = None,
    lr: Rate = None,
    seed: Seed = None,
    setting: Settings = None,
    devices: Annotated[int, typer.Option(help="Processes (DDP), or GPUs.", min=1, max=1024)] = 1,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/train"),
    resume: Annotated[
        bool,
        typer.Option(help="Continue the run in --out; only moved data need --data-dir again."),
    ] = False,
    list_recipes: Annotated[bool, typer.Option(help="List the recipes and stop.")] = False,
) -> None:
    """Train a contrastive model with batches chosen by a selector; Ctrl-C saves."""
    terminal: Terminal = context.obj
    if list_recipes:
        _list_recipes(terminal)
        return
    with errors(terminal), interruptible(terminal, out):
        check_out(out)
        chosen = [f"batches.selector={selector}"] if selector else []
        chosen += [f"method={method}"] if method else []
        chosen += encoder_settings(encoder) + _set(epochs, batch_size, tau, lr, seed)
        from eigenbatch.train.launch import fresh, resumed

        run = (
            resumed(out, recipe, data, data_dir, [*chosen, *(setting or [])])
            if resume
            else fresh(out, recipe, data, data_dir, [*chosen, *(setting or [])])
        )
        from eigenbatch.runs import read_run
        from eigenbatch.runs.findings import worth_saying
        from eigenbatch.train.progress import progress_bar
        from eigenbatch.train.trainer import train as start

        terminal.say(f"{'resume' if resume else 'train'}: {run.summary()}; run directory {out}")
        watch = progress_bar(terminal.console(), f"{out.parent.name}/{out.name}")
        start(run, out, resume=resume, watch=watch, devices=devices)
        record = read_run(out)
    last = {name: series.value[-1] for name, series in record.series.items() if _is_result(name)}
    last |= {"step": record.metrics.end[0], "seconds": record.metrics.end[2]}
    for name, value in last.items():
        terminal.say(f"{name:>16}  {value:.4g}")
    findings = worth_saying(record.metrics.records["findings"])
    show_findings(findings, terminal.console())
    if record.accuracy is None:
        terminal.say("no labels: there is no accuracy, only RankMe")
    terminal.say(f"run: {out}")
    numbers = {name: float(value) for name, value in last.items()}
    named = [asdict(one) for one in findings]
    terminal.result(numbers | {"run": str(out), "findings": named})


@app.command(
    epilog="Example: eigenbatch compare --selectors random,neighbours --seeds 3 --data pairs"
)
def compare(
    context: typer.Context,
    selectors: Annotated[
        str, typer.Option(help="Comma-separated; the first is the baseline.")
    ] = "random,neighbours",
    seeds: Annotated[int, typer.Option(help="Runs of each selector, paired by seed.")] = 3,
    data: Data = None,
    encoder: Encoder = None,
    recipe: Annotated[str | None, typer.Option(help="Settings to start from.")] = None,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    tau: Tau = None,
    lr: Rate = None,
    seed: Seed = None,
    setting: Settings = None,
    target: Annotated[float | None, typer.Option(help="Accuracy that time is measured to.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are kept.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train several selectors with the same seeds and budget, and test the difference.

    Interrupted, run the same command to resume.
    """
    terminal: Terminal = context.obj
    console = terminal.console()
    names = [name.strip() for name in selectors.split(",")]
    with errors(terminal):
        from eigenbatch.runs.comparison import check_comparison
        from eigenbatch.train.batches import check_selector

        check_out(out)
        check_comparison(names, seeds, target)
        for name in names:
            check_selector(name)
        if any(text.startswith("batches.selector=") for text in setting or []):
            raise ParameterError("compare takes its selectors from --selectors, not from --set")
        from eigenbatch.train.launch import check_comparable, configured

        run = configured(
            recipe,
            data,
            data_dir,
            [
                *encoder_settings(encoder),
                *_set(epochs, batch_size, tau, lr, seed),
                *(setting or []),
            ],
        )
        check_comparable(run)
        measure = "MRR" if run.method.pairs else "kNN"
        terminal.say(
            f"compare: {len(names)} selectors x {seeds} seeds of {run.summary(selector=False)}; "
            f"runs in {out}, finished ones are kept"
        )
        from eigenbatch.train.comparing import compare_selectors

        numbers = range(run.seed, run.seed + seeds)
        with resumable(terminal), live_runs(console, names, numbers, measure) as progress:
            result = compare_selectors(
                run, names, seeds, out, target=target, progress=progress, console=console
            )
    show_comparison(result, console, measure)
    terminal.say(f"runs: {out}")
    terminal.result(asdict(result))


def _is_result(name: str) -> bool:
    """Whether a number is shown at the end of a run."""
    return "/" not in name and name not in ("finished", "step_seconds", "waited_seconds")


def _list_recipes(terminal: Terminal) -> None:
    from eigenbatch.train.recipes import RECIPES, summary

    table = Table("recipe", "setting")
    for name in RECIPES:
        table.add_row(name, summary(name))
    terminal.console().print(table)
    terminal.result({name: summary(name) for name in RECIPES})
