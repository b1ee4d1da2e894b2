"""Runs on sentence pairs as chunks of claims: two small towers, evaluated by retrieval."""

import gzip
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenbatch.errors import DataError
from eigenbatch_paper.caption_runs import CAPTIONS, TEST_PICTURES, picture_captions
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.found_pairs import (
    CODE,
    LANGUAGES,
    MESSAGES,
    Sides,
    code_pairs,
    message_pairs,
)

if TYPE_CHECKING:
    from eigenbatch.train import Run

SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 10, "paper": 10}
DATA = "multi30k"
EPOCHS = {64: 3, 256: 13}  # of 29,000 pairs, by batch size: about 1,400 steps each
FILL = {"fill_step": 100}
"""Steps after which a run embeds all samples that it has not met."""
NAMES = {
    "batch_size": "batches.batch_size", "selector": "batches.selector", "guard": "batches.guard",
    "epochs": "budget.epochs", "evaluate_every": "evaluation.every_steps", "seed": "seed",
    "tau": "method.tau", "train_size": "data.train_size", "held_out": "data.held_out",
    "fill_step": "batches.fill_step",
}  # fmt: skip
"""Settings of a chunk that are settings of its `Run`; `data` and `made_up` choose the files."""


def needs(scale: Scale) -> frozenset[str]:
    """Scale smoke makes up its pairs."""
    return frozenset() if scale == "smoke" else frozenset({DATA})


def pair_chunk(scale: Scale, seed: int, **changes: Any) -> Chunk:
    """One run on pairs; at scale smoke a short one on made-up pairs."""
    settings = {"data": "plain", "made_up": scale == "smoke", **changes, "seed": seed}
    if scale == "smoke":
        settings |= {"epochs": 2, "evaluate_every": 4}
        settings |= {"fill_step": 3} if "fill_step" in settings else {}
    words = [settings["data"], settings["selector"], settings["batch_size"]]
    words += ["guarded"] if settings.get("guard") else []
    words += ["filled"] if "fill_step" in settings else []
    words += [f"tau-{settings['tau']}"] if "tau" in settings else []
    words += [f"of-{settings['train_size']}"] if "train_size" in settings else []
    return Chunk("-".join(map(str, ["pairs", *words, "seed", seed])), settings)


def unseen_chunks(scale: Scale, *versions: str) -> list[Chunk]:
    """The runs of hard-batches on as many pairs that had no part in the making of Auto."""
    return [
        pair_chunk(
            scale, seed, data=version, selector=selector, batch_size=n, epochs=epochs,
            evaluate_every=50, train_size=1280 if scale == "smoke" else 29000,
        )
        for seed in range(SEEDS[scale])
        for version in versions
        for n, epochs in EPOCHS.items()
        for selector in ("random", "neighbours-4", "auto")
    ]  # fmt: skip


def run_of(chunk: Chunk, place: Place) -> "Run":
    """The run that a chunk describes."""
    from eigenbatch.train import override, recipe

    settings = chunk.settings
    files = _files(place, str(settings["data"]), made_up=bool(settings["made_up"]))
    texts = [f"data.{name}={path}" for name, path in files.items()]
    texts += [f"{NAMES[name]}={value}" for name, value in settings.items() if name in NAMES]
    if "fill_step" not in settings:
        texts += ["batches.fill_cache=false", "batches.fill_step=0"]
    return override(recipe("pairs-cpu"), texts)


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train as the chunk says, or read the run if it is finished; one row."""
    import torch

    from eigenbatch.runs import RunDirectory, read_run
    from eigenbatch.train import train

    directory = RunDirectory(place.runs / chunk.name)
    resume = directory.manifest.exists()
    train(run_of(chunk, place), directory.path, resume=resume, devices=1)
    run = read_run(directory.path, clock="seconds" if torch.cuda.is_available() else "cpu_seconds")
    curve = run.series["mrr"]
    late = {
        name: float(values[len(values) // 2 :].mean())  # second half of the run
        for name in ("miss", "solved_share")
        for values in [run.series[f"spectral/{name}"].value]
    }
    return [
        {
            **chunk.settings,
            "steps": curve.step.tolist(),
            "times": curve.seconds.tolist(),
            "mrr": curve.value.tolist(),
            "recall_at_1": run.final("recall_at_1"),
            "miss": late["miss"],
            "solved": late["solved_share"],
        }
    ]


def _files(place: Place, version: str, *, made_up: bool) -> dict[str, Path]:
    """Training and test files for `PairsConfig`, written beside the runs.

    Args:
        place: its folder multi30k holds train.LANGUAGE.gz and test files of two languages.
        version: "plain"; "tripled": every training pair three times; "long-tailed": one pair in a
            hundred fifty times, nine in a hundred five times; instead of translations "captions":
            two captions of each picture of flickr8k, "code": what functions say and do,
            "messages-es": messages of programs and their translations.
        made_up: use pairs of random words instead.
    """
    folder = place.runs / ("pairs-made-up" if made_up else "pairs")
    folder.mkdir(parents=True, exist_ok=True)
    tested = f"{version}-test" if version in OWN else "test"
    files = {
        f"{part}{side}": folder / f"{name}.{side}.txt"
        for part, name in (("", version), ("test_", tested))
        for side in ("first", "second")
    }
    if all(path.exists() for path in files.values()):
        return files
    sides = _made_up() if made_up else OWN.get(version, _translations)(place)
    for side, (train, test) in zip(("first", "second"), sides, strict=True):
        copies = _copies(len(train), version)
        lines = [line for line, count in zip(train, copies, strict=True) for _ in range(count)]
        _write(files[side], lines)
        _write(files[f"test_{side}"], test)
    return files


def _copies(count: int, version: str) -> list[int]:
    """How often each pair stands in the training data."""
    if version == "tripled":
        return [3] * count
    if version == "long-tailed":
        return [50 if i % 100 == 0 else 5 if i % 100 < 10 else 1 for i in range(count)]
    return [1] * count


def _translations(place: Place) -> Sides:
    """Sentences of both languages, English first if it is one of them."""
    folder = place.folder(DATA)
    if folder is None:
        raise DataError(f"give --data-dir {DATA}=FOLDER, with train.en.gz and train.de.gz")
    found = {path.name.split(".")[1] for path in folder.glob("train.*.gz")}
    if len(found) != 2:
        raise DataError(
            f"{folder} must hold train.LANGUAGE.gz of two languages, found "
            f"{', '.join(sorted(found)) or 'none'}"
        )
    sides = []
    for language in sorted(found, key=lambda name: (name != "en", name)):
        tests = sorted(p for p in folder.glob(f"*.{language}.gz") if p.name[:6] != "train.")
        if not tests:
            raise DataError(f"{folder} holds no test file *.{language}.gz beside the training one")
        train = _lines([folder / f"train.{language}.gz"])
        sides.append((train, _lines(tests)))
    return sides


def _captions(place: Place) -> Sides:
    """One caption of each picture on one side and another one on the other."""
    pictures = picture_captions(place.folder(CAPTIONS))
    return [
        ([captions[side] for captions in pictures[TEST_PICTURES:]],
         [captions[side] for captions in pictures[:TEST_PICTURES]])
        for side in (0, 1)
    ]  # fmt: skip


def _code(place: Place) -> Sides:
    return code_pairs(place.folder(CODE))


def _messages(language: str, place: Place) -> Sides:
    return message_pairs(place.folder(MESSAGES), language)


OWN: Mapping[str, Callable[[Place], Sides]] = {
    "captions": _captions,
    "code": _code,
    **{f"messages-{language}": partial(_messages, language) for language in LANGUAGES},
}
"""Versions that have test pairs of their own."""


def _lines(paths: Iterable[Path]) -> list[str]:
    return [
        line
        for path in paths
        for line in gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
    ]


def _made_up(count: int = 1600) -> Sides:
    """Sentences of six random words, and the same words with another ending."""
    draw = random.Random(0)
    first = [" ".join(f"w{draw.randrange(60)}" for _ in range(6)) for _ in range(count)]
    second = [" ".join(f"{word}x" for word in line.split()) for line in first]
    return [(side[: count * 4 // 5], side[count * 4 // 5 :]) for side in (first, second)]


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write a file as a whole; another process may be writing the same."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(path)
