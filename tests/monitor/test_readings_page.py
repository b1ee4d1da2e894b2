"""docs/readings.md is made from the declarations: `python tests/monitor/test_readings_page.py`."""

import inspect
from pathlib import Path

from eigenbatch.monitor.reading import NUMBERS
from eigenbatch.monitor.rules import RULES, SYMPTOMS

PAGE = Path(__file__).parents[2] / "docs" / "readings.md"
HEAD = """# Numbers and findings

Made from the declarations in the code; do not edit by hand. What to do about a finding:
[when training goes wrong](diagnosis.md).

## Numbers of a reading

`reading.scalars()` has each under `spectral/`; of two towers, `spectral/first_tower/` has the ranks
of the anchors. Loggers send those marked * unless they are asked for all.

| name | meaning |
| --- | --- |
"""
FINDINGS = """
## Findings

In the order of causes: a finding makes remarks of those that it explains. A critical one is said
at once.

| name | when | warns after | explains |
| --- | --- | --- | --- |
"""


def page():
    numbers = [f"| `{n.name}`{' *' if n.logged else ''} | {_cell(n.meaning)} |" for n in NUMBERS]
    rules = [
        f"| {rule.name} | {_cell(inspect.getdoc(rule.check).partition(chr(10))[0])} "
        f"| {_after(rule)} | {', '.join(_explained(rule)) or ''} |"
        for rule in RULES
    ]
    return HEAD + "\n".join(numbers) + "\n" + FINDINGS + "\n".join(rules) + "\n"


def _cell(text):
    return text.replace("|", "\\|")


def _after(rule):
    if rule.remark:
        return "never: a remark"
    text = f"{rule.lasting} readings in a row"
    return f"{text}, not in the first steps" if rule.untrained else text


def _explained(rule):
    for name in rule.explains:
        if name == SYMPTOMS:
            yield from (one.name for one in RULES if one.symptom)
        else:
            yield name


def test_the_page_is_what_the_code_declares():
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
