"""A new file in a room is found without an entry in a list."""

import sys
from pathlib import Path

import pytest

from eigenbatch.discovery import defined_in


def test_objects_of_every_module_are_found_in_order_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for name, content in {"__init__": "", "later": "NUMBER = 2", "earlier": "NUMBER = 1"}.items():
        (room / f"{name}.py").write_text(f"{content}\nTEXT = 'of another type'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(defined_in("room", [str(room)], int)) == [1, 2]
    for name in ("room", "room.earlier", "room.later"):
        monkeypatch.delitem(sys.modules, name)


def test_a_rule_in_a_new_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenbatch.monitor import rules
    from eigenbatch.monitor.rule import Rule

    (tmp_path / "weekday.py").write_text(
        "from functools import partial\n"
        "from eigenbatch.monitor.rule import Answer, ReadingRule\n"
        "@partial(ReadingRule, 'monday', place=5)\n"
        "def monday(reading):\n"
        "    return Answer('info', 'day 1 of 7', 'Wait.')\n"
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    found = {rule.name: rule for rule in defined_in(rules.__name__, rules.__path__, Rule)}
    monkeypatch.delitem(sys.modules, "eigenbatch.monitor.rules.weekday")
    assert set(found) == {"monday", *(rule.name for rule in rules.RULES)}
    assert found["monday"](None).name == "monday"
