"""What commands print: tables for people, one JSON value for programs, nothing when quiet."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from eigenbatch.diagnose import Report
    from eigenbatch.runs import Comparison, PairedDifference
    from eigenbatch.runs.findings import Episode

STYLES = {"critical": "bold red", "warning": "yellow", "info": "green"}
OUTCOME_STYLES = {
    "reproduced": "green",
    "holds under stated conditions": "yellow",
    "inconclusive": "cyan",
    "does not reproduce": "red",
}


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command writes. With `json`, standard output is the result alone."""

    quiet: bool = False
    json: bool = False
    debug: bool = False

    def console(self) -> Console:
        """For people: silent with --quiet or --json."""
        return Console(quiet=self.quiet or self.json, highlight=False)

    def say(self, text: str) -> None:
        """One line, not wrapped: paths and commands can be copied."""
        self.console().print(text, soft_wrap=True, markup=False)

    def result(self, value: Any) -> None:
        """The result for programs, if asked for."""
        if self.json:
            print(json.dumps(_finite(value), indent=2))


def complain(text: str) -> None:
    """An error, on standard error."""
    message = Text.assemble(("error: ", "bold red"), text)
    Console(stderr=True, soft_wrap=True, highlight=False).print(message)


def show_report(report: "Report", console: Console, *, tables: bool = False) -> None:
    """Each finding with its evidence and advice, then the main numbers or all tables of facts."""
    for one in report.findings:
        console.print(Text(f"{one.severity}: {one.name}", STYLES[one.severity]))
        reasons = Table.grid(padding=(0, 2))
        reasons.add_row("", "because", Text(one.evidence))
        reasons.add_row("", "advice", Text(one.advice))
        console.print(reasons, "")
    for section in report.sections if tables else (report.summary,):
        table = Table("", "value", "meaning", title=section.title, title_justify="left")
        for line in section.lines:
            table.add_row(line.name, line.value, line.meaning)
        console.print(table, "")


def show_findings(findings: Sequence["Episode"], console: Console) -> None:
    """What the monitor found during a run; one line if there is nothing to warn of."""
    if not findings:
        console.print("findings: none above info", style="green")
    for one in findings:
        place = (
            f"step {one.first:.0f}"
            if one.first == one.last
            else (f"steps {one.first:.0f} to {one.last:.0f}")
        )
        console.print(Text(f"{one.severity}: {one.name}, {place}", STYLES[one.severity]))
        reasons = Table.grid(padding=(0, 2))
        reasons.add_row("", "because", Text(one.last_evidence))
        reasons.add_row("", "advice", Text(one.advice))
        console.print(reasons)


def show_comparison(result: "Comparison", console: Console, measure: str = "kNN") -> None:
    """One row a selector: means over seeds, and paired differences to the first."""
    seeds = len(result.entries[0].summaries)
    enough = all(entry.accuracy_gain.enough for entry in result.entries)
    doubt = "± is the 95 % CI" if enough else "no intervals"
    title = f"{seeds} seeds, paired; target {measure} {result.target:.3f}; {doubt}"
    gains = _plain_table("selector", measure, "gain", "p", "time", "saved", "p")
    curves = _plain_table("selector", "epochs", "AUAC", "AULC", "R_eff", "sigma", "share")
    for entry in result.entries:
        runs, first = entry.summaries, entry is result.entries[0]
        gain, saved = entry.accuracy_gain, entry.time_saved
        gains.add_row(
            entry.selector,
            f"{fmean(r.final_accuracy for r in runs):.3f}",
            "" if first else _with_interval(gain, "{:+.3f}", "{:.3f}"),
            "" if first else _p_value(gain),
            _reached(fmean(r.seconds_to_target for r in runs), "{:.1f} s"),
            "" if first else _with_interval(saved, "{:+.0%}", "{:.0%}"),
            "" if first else _p_value(saved),
        )
        collapsed = sum(r.collapsed for r in runs)
        curves.add_row(
            entry.selector,
            _reached(fmean(r.epochs_to_target for r in runs), "{:.2f}"),
            f"{fmean(r.accuracy_area for r in runs):.3f}",
            f"{fmean(r.loss_area for r in runs):.2f}",
            f"{fmean(r.mean_rank for r in runs):.1f}",
            f"{fmean(r.peak_sigma for r in runs):.2f}" + (f" !{collapsed}" if collapsed else ""),
            f"{fmean(r.selection_share for r in runs):.1%}",
        )
    console.print(title, gains, curves, highlight=False)
    console.print(
        "time, saved, epochs: to the target, selection included; - if a run missed it or began "
        "there. Unless given, the target is 90 % of what the first selector gains over an "
        "untrained encoder. AUAC, AULC: areas under the curves of accuracy and loss; sigma: peak "
        "top eigenvalue, !N if N runs collapsed; share: of time spent on selection",
        style="dim",
    )
    if not enough:
        console.print(
            f"{seeds} seed{'s' * (seeds > 1)}: the gains show a direction; whether it is luck "
            "cannot be said. 3 seeds give an interval, 5 or more find small differences."
        )
    elif not any(
        e.accuracy_gain.significant or e.time_saved.significant for e in result.entries[1:]
    ):
        console.print("No difference is significant at 95 %: more seeds, or no effect.")


@contextmanager
def live_runs(
    console: Console, selectors: Sequence[str], seeds: Sequence[int], measure: str = "kNN"
) -> Iterator[Callable[[str, int, float | None], None]]:
    """A table of selectors by seeds that fills while runs finish; call it with each accuracy.

    An accuracy of None marks the run that has begun. Without a terminal, one line a finished run.
    """
    cells = {(name, seed): "" for name in selectors for seed in seeds}

    def table() -> Table:
        grid = _plain_table(measure, *(f"seed {seed}" for seed in seeds))
        for name in selectors:
            grid.add_row(name, *(cells[name, seed] for seed in seeds))
        return grid

    if not console.is_terminal:

        def tell(name: str, seed: int, accuracy: float | None) -> None:
            if accuracy is not None:
                console.print(f"{name}, seed {seed}: {measure} {accuracy:.3f}")

        yield tell
        return
    with Live(table(), console=console, transient=True) as live:

        def show(name: str, seed: int, accuracy: float | None) -> None:
            cells[name, seed] = "..." if accuracy is None else f"{accuracy:.3f}"
            live.update(table(), refresh=True)

        yield show


def show_claims(claims: Sequence[Any], console: Console) -> None:
    """What can be reproduced, a sentence each, and how long that takes."""
    table = _plain_table("claim", "what it says", "minutes")
    for one in claims:
        table.add_row(one.name, Text(one.statement), _minutes(one.minutes["small"]))
    table.columns[1].no_wrap = False
    console.print(table)
    console.print(
        "Minutes are those of scale small on two cores. `--list NAME` says more about a claim."
    )


def show_claim(claim: Any, console: Console) -> None:
    """One claim: where it stands, its criterion, and its size at each scale."""
    facts = Table.grid(padding=(0, 2))
    lines = {
        "says": claim.statement,
        "where": claim.section,
        "printed": claim.printed,
        "criterion": claim.criterion,
    }
    for scale, size in claim.size.items():
        data = ", ".join(sorted(claim.needs(scale))) or "none"
        lines[scale] = f"{size}; {_minutes(claim.minutes[scale])} minutes; data: {data}"
    for name, text in lines.items():
        facts.add_row("", name, Text(text))
    console.print(Text(claim.name, style="bold"), facts, "")


def _minutes(value: float) -> str:
    return f"{value:.1g}" if value < 1 else f"{value:,.0f}"


def show_verdict(record: dict[str, Any], console: Console) -> None:
    """One claim's verdict."""
    head = Text.assemble(
        (record["claim"], "bold"),
        "  ",
        (record["outcome"], OUTCOME_STYLES[record["outcome"]]),
        f" at {record['scale']} scale",
    )
    facts = Table.grid(padding=(0, 2))
    for name in ("printed", "measured", "note"):
        facts.add_row("", name, Text(record[name]))
    console.print(head, facts, "")


@contextmanager
def chunk_progress(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """A bar over chunks of work; without a terminal, one line a finished chunk."""
    if not console.is_terminal:
        yield lambda done, total, name: console.print(f"{done} of {total}: {name}", highlight=False)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        yield advance


def _reached(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "-"


def _with_interval(difference: "PairedDifference", form: str, half: str) -> str:
    if not difference.enough:
        return _reached(difference.mean, form)
    return _reached(difference.mean, form + "±" + half.format(difference.half_width))


def _p_value(difference: "PairedDifference") -> str:
    return _reached(difference.p_value, "{:.2f}") if difference.enough else "-"


def _plain_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _finite(value: Any) -> Any:
    """The value with numbers that JSON cannot hold as null."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
