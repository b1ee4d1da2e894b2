"""python -m benchmarks.diagnosis_bench --cifar FOLDER --captions FILE --bitext FOLDER [--out FILE]

Runs every case on its two data sets and prints one line per run (ok, MISS, or ALSO: a misleading
finding beside a correct one) and a summary of each half: digits and captions, CIFAR-10 and
Multi30k. Seeds 0 to 4 were used while rules were changed: report another one. One thread; about
eleven minutes on a quiet machine.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.diagnosis_bench import data
from benchmarks.diagnosis_bench.cases import MOCO, SIMCLR, TOWERS, Case
from benchmarks.diagnosis_bench.runs import RUN, Outcome
from eigenbatch.monitor.rules import EARLY_STEPS

HARM = 3.0
"""Points of kNN accuracy or R@10 below the healthy run that count as harm."""


def sources(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Any, list[Case]]]:
    """(half, name, data, cases) for every data set that was given."""
    yield "first", "digits", data.digits(), SIMCLR + MOCO
    if arguments.captions:
        yield "first", "captions", data.captions(arguments.captions), TOWERS
    if arguments.cifar:
        yield "second", "CIFAR-10", data.cifar(arguments.cifar), SIMCLR + MOCO
    if arguments.bitext:
        yield "second", "Multi30k", data.bitext(arguments.bitext), TOWERS


def warnings_of(outcome: Outcome) -> dict[str, int]:
    """Names of findings above "info" from step 100 on, with the first step of each."""
    found: dict[str, int] = {}
    for reading in outcome.readings:
        for one in reading.findings:
            late = reading.step is not None and reading.step >= EARLY_STEPS
            if one.severity != "info" and (late or one.severity == "critical"):
                found.setdefault(one.name, reading.step or 0)
    return found


def row_of(case: Case, outcome: Outcome, healthy: float | None) -> dict[str, Any]:
    found = warnings_of(outcome)
    allowed = {*case.expected, *case.beside}
    return {
        "layout": case.layout,
        "case": case.name,
        "expected": list(case.expected),
        "found": found,
        "right": bool(set(found) & set(case.expected)) if case.expected else not found,
        "misleading": sorted(set(found) - allowed) if case.expected else [],
        "quality": outcome.quality,
        "harm": 0.0 if healthy is None else healthy - outcome.quality,
        "std": outcome.std,
        "rankme": outcome.rankme,
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Sensitivity and specificity, and those of std and RankMe with bars that suit them best."""
    healthy = [row for row in rows if not row["expected"]]
    broken = [row for row in rows if row["expected"]]
    harmful = [row for row in broken if row["harm"] >= HARM]
    lines = [
        f"healthy without a warning: {sum(row['right'] for row in healthy)} of {len(healthy)}",
        f"broken with a correct finding: {sum(row['right'] for row in broken)} of {len(broken)}",
        f"harmed by {HARM:g} points or more, with a correct finding: "
        f"{sum(row['right'] for row in harmful)} of {len(harmful)}",
        f"broken with a misleading finding: {sum(bool(row['misleading']) for row in broken)} of "
        f"{len(broken)}, with no other: "
        f"{sum(bool(row['misleading']) and not row['right'] for row in broken)}",
    ]
    for name in ("std", "rankme"):
        bar = min(row[name] for row in healthy)
        caught = sum(not row[name] >= bar for row in broken)
        lines.append(f"{name} below its lowest healthy value {bar:.2f}: {caught} of {len(broken)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("cifar", "captions", "bitext", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, list[dict[str, Any]]] = {}
    for half, name, content, cases in sources(arguments):
        healthy: dict[str, float] = {}
        for case in cases:
            if arguments.only not in case.name and case.name != "healthy":
                continue
            started = time.perf_counter()
            outcome = RUN[case.layout](case, content, seed=arguments.seed)
            if case.name == "healthy":
                healthy[case.layout] = outcome.quality
            row = row_of(case, outcome, healthy.get(case.layout)) | {"data": name}
            rows.setdefault(half, []).append(row)
            mark = "MISS" if not row["right"] else "ALSO" if row["misleading"] else "ok  "
            print(
                f"{mark} {name:9} {case.layout:7} {case.name:28} "
                f"{row['quality']:5.1f} ({-row['harm']:+5.1f}) {row['found']} "
                f"[{time.perf_counter() - started:.1f} s]",
                flush=True,
            )
    for half, found in rows.items():
        print(f"\n{half} half\n{summary(found)}")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
