"""Pairs for code search: what a Python function says it does, and what it does."""

import ast
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

from eigenbatch.errors import DataError

CODE = "python"
TESTED = 1000
SHORT, LONG = 20, 400
"""Characters: shorter texts are skipped, longer ones cut."""


def code_pairs(folder: Path | None) -> list[tuple[list[str], list[str]]]:
    """Training and test texts of both sides; no two functions have the same text on a side."""
    if folder is None:
        raise DataError(f"give --data-dir {CODE}=FOLDER with Python packages, say site-packages")
    told: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        told.update(_functions(path))
    found = {code: text for text, code in told.items()}
    pairs = [(text, code) for code, text in found.items()]
    if len(pairs) <= TESTED:
        raise DataError(
            f"the Python files in {folder} have {len(pairs)} functions with a docstring, more than "
            f"{TESTED} are needed: give --data-dir {CODE}=FOLDER with more packages"
        )
    random.Random(0).shuffle(pairs)
    sides = [list(side) for side in zip(*pairs, strict=True)]
    return [(side[TESTED:], side[:TESTED]) for side in sides]


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
            code = _line(" ".join([*names, *map(ast.unparse, node.body[1:])]))
            text = _line(told.split("\n\n")[0])
            if min(len(text), len(code)) >= SHORT:
                yield text, code


def _line(text: str) -> str:
    return " ".join(text.split())[:LONG]
