"""Pairs that most machines hold: functions with docstrings, messages with translations."""

import ast
import random
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

from eigenbatch.errors import DataError

CODE, MESSAGES = "python", "messages"
LANGUAGES = {"es": "Spanish", "ru": "Russian"}
TESTED = 1000
SHORT, LONG = 20, 400
"""Characters of code and docstrings: shorter texts are skipped, longer ones cut."""
WORDS = range(3, 61)
"""In an English message."""

Sides = list[tuple[list[str], list[str]]]
"""Training and test texts, of the first side and of the second."""


def code_pairs(folder: Path | None) -> Sides:
    """What a Python function says it does, and what it does; no text stands twice on a side."""
    if folder is None:
        raise DataError(f"give --data-dir {CODE}=FOLDER with Python packages, say site-packages")
    told: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        told.update(_functions(path))
    found = {code: text for text, code in told.items()}
    return _split(
        [(text, code) for code, text in found.items()],
        f"the Python files in {folder} have {len(found)} functions with a docstring",
        f"{CODE}=FOLDER with more packages",
    )


def message_pairs(folder: Path | None, language: str) -> Sides:
    """Messages of programs, and their translations; no English message stands twice.

    Lists of names (of countries, say; the catalogues iso*) are left out.
    """
    if folder is None:
        raise DataError(f"give --data-dir {MESSAGES}=FOLDER with catalogues, say /usr/share/locale")
    found: dict[str, str] = {}
    for path in sorted(folder.glob(f"{language}/LC_MESSAGES/*.mo")):
        if not path.name.startswith("iso"):
            for text, translation in _catalogue(path.read_bytes()):
                if len(text.split()) in WORDS and translation not in ("", text):
                    found.setdefault(text, translation)
    return _split(
        list(found.items()),
        f"{folder}/{language}/LC_MESSAGES has {len(found)} translated messages",
        f"{MESSAGES}=FOLDER with more catalogues (*.mo)",
    )


def _split(pairs: list[tuple[str, str]], found: str, fix: str) -> Sides:
    """Test pairs are drawn at random, the same ones every time."""
    if len(pairs) <= TESTED:
        raise DataError(f"{found}, more than {TESTED} are needed: give --data-dir {fix}")
    random.Random(0).shuffle(pairs)
    sides = [list(side) for side in zip(*pairs, strict=True)]
    return [(side[TESTED:], side[:TESTED]) for side in sides]


def _catalogue(content: bytes) -> list[tuple[str, str]]:
    """Messages and translations in a .mo file, the singular of those with a plural.

    Two tables of (length, offset) follow the magic number, revision, count and their own offsets.
    Empty if the file is damaged or not in UTF-8.
    """
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    try:
        count, *tables = struct.unpack_from(f"{order}3I", content, 8)
        columns = [
            [
                _message(content[start : start + length])
                for length, start in struct.iter_unpack(f"{order}2I", content[at : at + 8 * count])
            ]
            for at in tables
        ]
        return list(zip(*columns, strict=True))
    except (struct.error, ValueError):
        return []


def _message(stored: bytes) -> str:
    """Without its context, its plural forms, and the marks of keyboard shortcuts."""
    text = stored.split(b"\0")[0].decode().rpartition("\x04")[2]
    return _line(text.replace("_", "").replace("&", ""))


def _functions(path: Path) -> Iterator[tuple[str, str]]:
    """First paragraph of the docstring, and the rest of the function without its name."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes, say
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, RecursionError):  # ValueError: not UTF-8, or a null byte
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (told := ast.get_docstring(node)):
            names = [one.arg for one in node.args.args]
            code = _line(" ".join([*names, *map(ast.unparse, node.body[1:])]))[:LONG]
            text = _line(told.split("\n\n")[0])[:LONG]
            if min(len(text), len(code)) >= SHORT:
                yield text, code


def _line(text: str) -> str:
    return " ".join(text.split())
