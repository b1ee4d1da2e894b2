"""python -m benchmarks [NAME...]: run, print and write the sections of docs/benchmarks.md."""

import platform
import re
import sys
from importlib import import_module
from pathlib import Path

import torch

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
SECTIONS = {
    "core": "Core",
    "bands": "Tightness of the bands",
    "band_fuzz": "Violations of the certified band",
    "select": "Batch selection",
    "batches": "Planned epochs",
    "monitor": "Monitor",
    "train_step": "Training step",
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(SECTIONS)
    if unknown:
        sys.exit(
            f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}"
        )
    for name in names or SECTIONS:
        print(f"## {SECTIONS[name]}\n", flush=True)
        section = import_module(f"benchmarks.{name}").main()
        print(section, "\n", flush=True)
        write_section(name, section)


def write_section(name: str, text: str) -> None:
    """Replace the named section of the page, leaving the others as they are."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    heading = f"## {SECTIONS[name]}\n\n`python -m benchmarks {name}` ({machine})"
    section = f"{begin}\n{heading}\n\n{text}\n{end}"
    page = PAGE.read_text()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(page):
        page = pattern.sub(lambda _: section, page)
    else:
        page = page.rstrip() + "\n\n" + section + "\n"
    PAGE.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1:])
