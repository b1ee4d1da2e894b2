"""`eigenbatch demo`: a loss checked, a mistake named in training, its remedy, planned batches."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from eigenbatch.cli.command import app, check_out, errors, resumable
from eigenbatch.terminal import Terminal

if TYPE_CHECKING:
    from eigenbatch.demo import Letters
    from eigenbatch.runs import Comparison, Recorder, RunRecord

SEEDS = 4


@app.command(epilog="Example: eigenbatch demo --out runs/demo")
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Check a loss, train with a common mistake, see it named, correct it, plan better batches.

    About a minute on two cores, nothing is downloaded. Runs that are finished are kept.
    """
    terminal: Terminal = context.obj
    with errors(terminal), resumable(terminal):
        check_out(out)
        import torch

        from eigenbatch.demo import load_letters
        from eigenbatch.report.build import build

        torch.set_num_threads(1)  # small steps: several threads wait for each other
        letters = load_letters()
        count, held_out = letters.sans.shape[1], int(letters.held_out.sum())
        terminal.say(
            f"Task: find a letter of one typeface in another; {count:,} letters, {held_out} only "
            "in the test; MRR: 1 is best."
        )
        _loss(terminal)
        wrong = _mistake(letters, out / "mistake", terminal)
        result = _comparison(letters, out / "compare", terminal)
        page = build([out], out / "report.html")
    terminal.say(f"page: {page}")
    terminal.result(_numbers(wrong, result) | {"page": str(page)})


def _loss(terminal: Terminal) -> None:
    """A loss with a mistake, and the one that is trained with."""
    from eigenbatch.demo import TAU, contrastive, without_temperature
    from eigenbatch.monitor.check import check_loss

    terminal.say("1. Checking the loss before training.")
    for text, loss in (("logits * tau", without_temperature), ("logits / tau", contrastive)):
        report = check_loss(loss, TAU)
        told = report.mistakes[0] if report.mistakes else report.kind
        terminal.say(f"   {text}: {'right' if report.right else 'wrong'}, {told}.")


def _mistake(letters: "Letters", folder: Path, terminal: Terminal) -> "RunRecord":
    """One run with one picture as both views; the monitor reports while it trains."""
    from eigenbatch.batches.planner import Random
    from eigenbatch.demo import train
    from eigenbatch.runs import Recorder, read_run
    from eigenbatch.runs.comparison import read_if_finished, set_aside
    from eigenbatch.runs.findings import worth_saying

    terminal.say("2. Training with a mistake: one picture is used as both views.")
    warn = _warner(terminal)
    if done := read_if_finished(folder):
        for one in worth_saying(done.metrics.records["findings"]):
            warn(
                f"step {one.first:.0f}, {one.severity}: {one.name}. {one.evidence}. "
                f"What to do: {one.advice}"
            )
    else:
        set_aside(folder)
        config = {"selector": "random", "views": "one picture twice", "seed": 0}
        with Recorder(folder, config=config) as recorder:
            train(letters, Random(), 0, recorder, say=warn, same_view=True)
    run = read_run(folder)
    mrr = run.series["mrr"].value
    terminal.say(
        f"   Loss {run.final('loss'):.3f}; MRR {mrr[0]:.3f} before training, "
        f"{mrr[-1]:.3f} after it."
    )
    return run


def _comparison(letters: "Letters", folder: Path, terminal: Terminal) -> "Comparison":
    """The corrected training with random batches and with hard ones, in pairs of runs."""
    from eigenbatch.batches.neighbours import Neighbours
    from eigenbatch.batches.planner import Random
    from eigenbatch.demo import train
    from eigenbatch.runs import compare

    selectors: dict[str, Callable[[], Any]] = {
        "random": Random,
        "neighbours": Neighbours,
    }
    warn = _warner(terminal)
    done: dict[tuple[str, int], float] = {}

    def progress(name: str, seed: int, accuracy: float | None) -> None:
        if accuracy is None:
            return
        done[name, seed] = accuracy
        if len(done) == 1:
            terminal.say(f"   MRR {accuracy:.3f}.{_remark(folder / name / f'seed-{seed}')}")
            terminal.say(
                f"4. Planned batches of similar letters against random ones, {SEEDS} seeds."
            )
        elif name == "neighbours":
            text = f"   {done['random', seed]:.3f} -> {accuracy:.3f}"  # a line that grows
            terminal.console().print(text, end="", soft_wrap=True)

    def corrected(name: str, seed: int, recorder: "Recorder") -> None:
        say = warn if not done else lambda text: None  # later warnings are on the page
        train(letters, selectors[name](), seed, recorder, say=say)

    terminal.say("3. The advice applied: the second view shows the letter in another typeface.")
    result = compare(corrected, list(selectors), SEEDS, folder, progress=progress)
    gain = result.entries[1].accuracy_gain
    reading = (
        ("better" if gain.mean > 0 else "worse") if gain.significant else "no difference shown"
    )
    terminal.say(
        f"   {100 * gain.mean:+.1f} points (95 % interval {100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f}), {reading}."
    )
    return result


def _remark(folder: Path) -> str:
    """What the last readings of a run say about its batches."""
    from eigenbatch.runs import read_run
    from eigenbatch.runs.findings import episodes

    found = episodes(read_run(folder).metrics.records["findings"])
    easy = [one for one in found if one.name == "easy batches"]
    if not easy:
        return ""
    return f" Step {easy[-1].last:.0f}: {easy[-1].last_evidence}"


def _warner(terminal: Terminal) -> Callable[[str], None]:
    """Shows what the monitor says, at the moment it says it: of the advice, the first sentence."""
    console = terminal.console()

    def say(text: str) -> None:
        found, _, advice = text.partition(" What to do: ")
        shown = f"   {found}\n   What to do: {advice.partition('. ')[0].rstrip('.')}."
        console.print(Text(shown, "yellow"), soft_wrap=True)

    return say


def _numbers(wrong: "RunRecord", result: "Comparison") -> dict[str, Any]:
    from eigenbatch.runs.findings import worth_saying

    random, hard = result.entries
    return {
        "untrained": float(wrong.series["mrr"].value[0]),
        "mistake": wrong.final("mrr"),
        "findings": [
            {"name": one.name, "step": one.first, "evidence": one.evidence, "advice": one.advice}
            for one in worth_saying(wrong.metrics.records["findings"])
        ],
        "random": fmean(one.final_accuracy for one in random.summaries),
        "neighbours": fmean(one.final_accuracy for one in hard.summaries),
        "gain": hard.accuracy_gain.mean,
        "gain_interval": [hard.accuracy_gain.low, hard.accuracy_gain.high],
    }
