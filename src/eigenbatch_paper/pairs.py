"""Runs on pairs of texts: two small towers, evaluated by retrieval. The data, and one run as a row.

| data | a pair |
| --- | --- |
| translations | a sentence in two languages (Multi30k) |
| tripled, long-tailed | the same, some of them several times |
| captions | two captions of one picture (Flickr8k) |
| code | what a Python function says it does, and what it does |
| messages-es, messages-ru | a message of a program, and its translation |
| packages | short and long description of a Debian package |
"""

import ast
import gzip
import os
import random
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenbatch.errors import DataError
from eigenbatch_paper import peers
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.training_chunks import short

if TYPE_CHECKING:
    from eigenbatch.train import Run

Texts = list[str]
Sides = list[tuple[Texts, Texts]]
"""Training and test texts, of the first side and of the second."""

HELD_OUT = 512
"""Pairs that no arm trains on: `Auto` compares them with training pairs."""

TESTED = 1000
SHORT, LONG = 20, 400
"""Characters of code and docstrings: shorter texts are skipped, longer ones cut."""
WORDS = range(3, 61)
"""In an English message."""
TEST_PICTURES = 2092

TUNED = ("translations", "captions", "code")
"""Data that the defaults of the planners were set on."""
UNSEEN = ("messages-es", "messages-ru", "packages")
SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 5, "paper": 5}
EPOCHS = {64: 3, 256: 13}
"""Of 29,000 pairs, by batch size: about 1,400 steps each."""
CAPTION_EPOCHS = {64: 10, 256: 40}
"""Of 5,488 pairs: 850 steps each."""
COPIED_EPOCHS = {"tripled": 4, "long-tailed": 7}
"""At n = 256: 1,400 steps."""
PAIRS = {"captions": 5488, "tripled": 87000, "long-tailed": 53940}
"""To train on; 29,000 of the others."""
NAMES = {
    "selector": "batches.selector", "batch_size": "batches.batch_size",
    "pairs": "data.train_size", "epochs": "budget.epochs", "tau": "method.tau",
    "fill_cache": "batches.fill_cache", "evaluate_every": "evaluation.every_steps", "seed": "seed",
}  # fmt: skip
"""Settings of a chunk that are settings of its `Run`."""


def needs(*data: str) -> Callable[[Scale], frozenset[str]]:
    """The data sets that must be on disk; scale smoke makes up its pairs."""
    found = frozenset(NEEDS[name] for name in data)
    return lambda scale: frozenset() if scale == "smoke" else found


def pair_chunk(
    scale: Scale, seed: int, data: str, selector: str, batch_size: int, **changes: Any
) -> Chunk:
    """One run on pairs; at scale smoke a short one on made-up pairs."""
    epochs = CAPTION_EPOCHS if data == "captions" else EPOCHS
    settings: dict[str, Any] = {
        "data": data, "pairs": PAIRS.get(data, 29000), "batch_size": batch_size,
        "epochs": COPIED_EPOCHS.get(data, epochs[batch_size]), "evaluate_every": 50,
        "selector": selector, **changes, "seed": seed,
    }  # fmt: skip
    if scale == "smoke":
        settings |= {"made_up": True, "pairs": 1280, "epochs": 2, "evaluate_every": 4}
    words = [data, selector, batch_size, *(f"{name}-{value}" for name, value in changes.items())]
    return Chunk("-".join(map(str, ["pairs", *words, "seed", seed])), settings)


def pair_chunks(scale: Scale, data: Iterable[str], selectors: Sequence[str]) -> list[Chunk]:
    """Runs at both batch sizes, those that are compared beside each other."""
    sets = list(data)
    return [
        pair_chunk(scale, seed, name, selector, n)
        for seed in range(SEEDS[scale])
        for name in sets
        for n in EPOCHS
        for selector in selectors
    ]


def run_of(chunk: Chunk, place: Place) -> "Run":
    """The run that a chunk describes."""
    from eigenbatch.train import override, recipe

    settings = chunk.settings
    made_up = "made_up" in settings
    held_out = 32 if made_up else HELD_OUT
    named = {**settings, "pairs": settings["pairs"] + held_out}
    data = "made-up" if made_up else settings["data"]
    texts = [f"data.{name}={path}" for name, path in _files(place, data).items()]
    texts += [f"{full}={named[name]}" for name, full in NAMES.items() if name in named]
    return override(recipe("pairs-cpu"), [*texts, f"data.held_out={held_out}"])


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train as the chunk says, or read the run if it is finished; one row."""
    import torch

    from eigenbatch.runs import RunDirectory, read_run
    from eigenbatch.train import train

    peers.register()
    directory = RunDirectory(place.runs / chunk.name)
    resume = directory.manifest.exists()
    train(run_of(chunk, place), directory.path, resume=resume, devices=1)
    run = read_run(directory.path, clock="seconds" if torch.cuda.is_available() else "cpu_seconds")
    curve, series = run.series["mrr"], run.series

    def late(key: str) -> float:
        values = series[f"spectral/{key}"].value
        return float(values[len(values) // 2 :].mean())

    row: Row = {
        **chunk.settings,
        "steps": curve.step.tolist(), "times": short(curve.seconds.tolist()),
        "mrr": short(curve.value.tolist()),
        "recall_at_1": run.final("recall_at_1"), "miss": late("miss"),
        "solved": late("solved_share"),
    }  # fmt: skip
    for key in ("predicted_miss", "random_miss", "ratio", "hard", "seconds"):
        if (found := series.get(f"sampler/{key}")) is not None:
            row[f"plan_{key}"] = short(_at_plans(found.value.tolist()))
    return [row]


def pair_claim(data: Iterable[str], *, setting: str, minutes: float, **fields: Any) -> Claim:
    """A claim of our own about these data sets; at scale smoke its pairs are made up."""
    return Claim(
        section="Beyond the paper",
        size={"smoke": "1,280 made-up pairs, 2 epochs", "small": setting, "paper": setting},
        minutes={"smoke": 1, "small": minutes, "paper": minutes},
        compute=compute,
        needs=needs(*data),
        trains=True,
        **fields,
    )


def _at_plans(values: Sequence[float]) -> list[float]:
    """One value per plan: a plan's figures stand in the lines of all its batches."""
    return [v for i, v in enumerate(values) if i == 0 or v != values[i - 1]]


def _files(place: Place, data: str) -> dict[str, Path]:
    """Training and test files of a data set, written beside the runs."""
    folder = place.runs / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        f"{part}{side}": folder / f"{data}.{part}{side}.txt"
        for part in ("", "test_")
        for side in ("first", "second")
    }
    if not all(path.exists() for path in found.values()):
        for side, (train, test) in zip(("first", "second"), DATA[data](place), strict=True):
            _write(found[side], train)
            _write(found[f"test_{side}"], test)
    return found


def _translations(place: Place, copies: Callable[[int], int] = lambda i: 1) -> Sides:
    """English and German, with pairs of the validation set at the end, to be held out."""
    folder = place.folder("multi30k")
    if folder is None or not (folder / "train.en.gz").is_file():
        raise DataError("give --data-dir multi30k=FOLDER, with train.en.gz and train.de.gz")
    sides = []
    for language in ("en", "de"):
        lines = _lines([folder / f"train.{language}.gz"])
        train = [line for i, line in enumerate(lines) for _ in range(copies(i))]
        held_out = _lines([folder / f"val.{language}.gz"])[:HELD_OUT]
        tests = sorted(folder.glob(f"test*.{language}.gz"))
        sides.append((train + held_out, _lines(tests)))
    return sides


def _long_tailed(i: int) -> int:
    """One pair in a hundred fifty times, nine in a hundred five times."""
    return 50 if i % 100 == 0 else 5 if i % 100 < 10 else 1


def captions(place: Place) -> list[Texts]:
    """The captions of every picture in Flickr8k.token.txt, pictures in a fixed random order."""
    folder = place.folder("flickr8k")
    file = None if folder is None else folder / "Flickr8k.token.txt"
    if file is None or not file.is_file():
        raise DataError("give --data-dir flickr8k=FOLDER, with Flickr8k.token.txt")
    pictures: dict[str, Texts] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, _, caption = line.replace("\t", " ", 1).partition(" ")
        pictures.setdefault(name.partition("#")[0], []).append(caption.strip())
    found = [texts for _, texts in sorted(pictures.items()) if len(texts) >= 2]
    random.Random(0).shuffle(found)
    return found


def _captions(place: Place) -> Sides:
    """One caption of each picture on one side and another one on the other."""
    pictures = captions(place)
    return [
        ([texts[side] for texts in pictures[TEST_PICTURES:]],
         [texts[side] for texts in pictures[:TEST_PICTURES]])
        for side in (0, 1)
    ]  # fmt: skip


def _code(place: Place) -> Sides:
    """No text stands twice on a side."""
    folder = place.folder("python")
    if folder is None:
        raise DataError("give --data-dir python=FOLDER with Python packages, say site-packages")
    told: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        told.update(_functions(path))
    found = {code: text for text, code in told.items()}
    return _split([(text, code) for code, text in found.items()], folder)


def _messages(language: str, place: Place) -> Sides:
    """No English message stands twice; lists of names (the catalogues iso*) are left out."""
    folder = place.folder("messages")
    if folder is None:
        raise DataError("give --data-dir messages=FOLDER with catalogues, say /usr/share/locale")
    found: dict[str, str] = {}
    for path in sorted(folder.glob(f"{language}/LC_MESSAGES/*.mo")):
        if not path.name.startswith("iso"):
            for text, translation in _catalogue(path.read_bytes()):
                if len(text.split()) in WORDS and translation not in ("", text):
                    found.setdefault(text, translation)
    return _split(list(found.items()), folder)


def _packages(place: Place) -> Sides:
    """From apt's lists (`apt-get -o Acquire::Languages=en update`); no text stands twice."""
    folder = place.folder("packages")
    lists = [] if folder is None else sorted(folder.glob("*i18n_Translation-en*"))
    if not lists:
        raise DataError("give --data-dir packages=FOLDER with Translation-en, unpacked")
    found: dict[str, str] = {}
    entry = re.compile(r"Description-en: (.*)\n((?: .*\n?)*)")
    for block in "\n\n".join(p.read_text(encoding="utf-8") for p in lists).split("\n\n"):
        if match := entry.search(block):
            told = (line.strip() for line in match[2].split("\n"))
            long = " ".join(line for line in told if line != ".").strip()
            if len(long) > 2 * SHORT and len(match[1]) > SHORT // 2:
                found.setdefault(long, match[1])
    short = {text: long for long, text in found.items()}
    return _split(list(short.items()), lists[0])


def _made_up(place: Place) -> Sides:
    """Sentences of six random words, and the same words with another ending."""
    draw = random.Random(0)
    first = [" ".join(f"w{draw.randrange(60)}" for _ in range(6)) for _ in range(1632)]
    second = [" ".join(f"{word}x" for word in line.split()) for line in first]
    return [(side[:1312], side[1312:]) for side in (first, second)]


DATA: Mapping[str, Callable[[Place], Sides]] = {
    "translations": _translations,
    "tripled": partial(_translations, copies=lambda i: 3),
    "long-tailed": partial(_translations, copies=_long_tailed),
    "captions": _captions,
    "code": _code,
    "messages-es": partial(_messages, "es"),
    "messages-ru": partial(_messages, "ru"),
    "packages": _packages,
    "made-up": _made_up,
}
NEEDS = {
    "translations": "multi30k", "tripled": "multi30k", "long-tailed": "multi30k",
    "captions": "flickr8k", "code": "python", "messages-es": "messages",
    "messages-ru": "messages", "packages": "packages",
}  # fmt: skip
"""The data set that must be on disk."""


def _split(pairs: list[tuple[str, str]], place: Path) -> Sides:
    """Test pairs are drawn at random, the same ones every time."""
    if len(pairs) <= TESTED + HELD_OUT:
        raise DataError(
            f"{place} holds {len(pairs)} pairs, more than {TESTED + HELD_OUT} are needed: give a "
            "folder with more"
        )
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


def _lines(paths: Iterable[Path]) -> Texts:
    return [
        line
        for path in paths
        for line in gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
    ]


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write a file as a whole; another process may be writing the same."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text("\n".join(map(_line, lines)) + "\n", encoding="utf-8")
    draft.replace(path)
