"""Runs claims: pending chunks over worker processes, rows to disk, then verdict and figure."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from eigenbatch.errors import RunError
from eigenbatch.runs import RunDirectory, commit, write_atomically
from eigenbatch_paper import registry
from eigenbatch_paper.claim import Chunk, Claim, Compute, Place, Row, Scale

Key = tuple[Compute, str]  # what makes two chunks the same work


@dataclass(frozen=True, slots=True)
class ClaimSettings:
    """What a claim's run directory was begun with."""

    claim: str
    scale: Scale


@dataclass(frozen=True, slots=True)
class ClaimRun:
    """A claim at a scale, in its run directory."""

    claim: Claim
    scale: Scale
    directory: RunDirectory

    @classmethod
    def open(cls, claim: Claim, scale: Scale, out: Path) -> "ClaimRun":
        """Begin the run, or continue one of the same claim and scale."""
        directory = RunDirectory(out / scale / claim.name)
        settings = ClaimSettings(claim.name, scale)
        if directory.manifest.exists():
            found = directory.read_manifest()["config"]
            if found != asdict(settings):
                raise RunError(
                    f"{directory.path} holds another claim ({found}): choose another --out"
                )
        elif _rank() == 0:
            directory.create(settings, device="cpu")
        return cls(claim, scale, directory)

    @property
    def rows(self) -> Path:
        """One line per finished chunk."""
        return self.directory.path / "rows.jsonl"

    @property
    def verdict(self) -> Path:
        """Written when every chunk is done."""
        return self.directory.path / "verdict.json"

    @property
    def figure(self) -> Path:
        """Drawn when every chunk is done."""
        return self.directory.path / "figure.png"

    def done(self) -> dict[str, list[Row]]:
        """Rows of the chunks that are finished, by a text that identifies the chunk."""
        return {key: line["rows"] for key, line in self._lines().items()}

    def pending(self) -> list[Chunk]:
        """Chunks still to be computed."""
        done = self.done()
        return [c for c in self.claim.chunks(self.scale) if _key(c) not in done]

    def add(self, chunk: Chunk, rows: list[Row], seconds: float) -> None:
        """Keep the rows of a finished chunk."""
        if _rank():
            return
        line = {"chunk": _key(chunk), "seconds": seconds, "commit": commit(), "rows": rows}
        if self.claim.trains:
            from eigenbatch.train import made_by

            line["made_by"] = made_by()
        with self.rows.open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # a line that a crash cut off
            file.write(json.dumps(line).encode() + b"\n")

    def finished_seeds(self) -> list[Chunk]:
        """The chunks of every data set and seed that are complete: they can be paired already."""
        unfinished = {_pairing(chunk) for chunk in self.pending()}
        chunks = self.claim.chunks(self.scale)
        return [chunk for chunk in chunks if _pairing(chunk) not in unfinished]

    def conclude(self, chunks: Sequence[Chunk] | None = None) -> dict[str, Any]:
        """Judge, draw and write both; the record of the verdict.

        chunks: some of them, for a verdict that says how many seeds it rests on.
        """
        wanted = self.claim.chunks(self.scale)
        found = self._lines()
        chunks, left_out = _of_one_version(wanted if chunks is None else chunks, found)
        lines = [found[_key(chunk)] for chunk in chunks]
        rows = [row for line in lines for row in line["rows"]]
        try:
            verdict = self.claim.judge(rows)
        except LookupError as reason:  # anything else is a fault of ours
            sources = ", ".join(dict.fromkeys(str(line["source"]) for line in lines))
            raise RunError(
                f"{sources} does not hold what {self.claim.name} needs ({reason!r}): damaged or of "
                "another version. Move it away to compute the claim again"
            ) from reason
        record = self.claim.record(verdict, self.scale, _least_seeds(chunks))
        if len(chunks) < len(wanted):
            record["size"] += f", so far {len(chunks)} of {len(wanted)} parts"
        record["made_by"] = lines[0].get("made_by")
        record["left_out"] = left_out
        record["commits"] = list(dict.fromkeys(line.get("commit") for line in lines))
        record["judged"] = commit()
        _draw(self.claim, rows, self.figure)
        if self.claim.table is not None:
            table = self.claim.table(rows)
            write_atomically(self.directory.path / "table.md", table.markdown().encode())
            write_atomically(self.directory.path / "table.csv", table.csv().encode())
        write_atomically(self.verdict, (json.dumps(record, indent=2) + "\n").encode())
        return record

    def _lines(self) -> dict[str, dict[str, Any]]:
        """What was kept of each finished chunk: its rows, time, commit and file.

        Other claims in the same folder may have done the same work.
        """
        own = kept_lines(self.rows)
        if self.claim.timed:
            return own
        wanted = {_key(chunk) for chunk in self.claim.chunks(self.scale)} - own.keys()
        for path in sorted(self.directory.path.parent.glob("*/rows.jsonl")):
            name = path.parent.name
            if name in registry.NAMES and registry.claim(name).compute is self.claim.compute:
                with suppress(RunError):  # a damaged file of another claim
                    own |= {key: line for key, line in kept_lines(path).items() if key in wanted}
        return own


def kept_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a file of rows, by a text that identifies the chunk, each with its `source`."""
    if not path.is_file():
        return {}
    lines: dict[str, dict[str, Any]] = {}
    for text in path.read_bytes().splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue  # cut off by a crash: the chunk is computed again
        known = isinstance(line, dict) and isinstance(line.get("chunk"), str)
        if not known or not isinstance(line.get("rows"), list):
            raise RunError(f"{path} is damaged: move it away to compute the claim again")
        lines[line["chunk"]] = line | {"source": path}
    return lines


def reproduce(
    claims: Sequence[Claim],
    scale: Scale,
    out: Path,
    *,
    data: Mapping[str, Path] | None = None,
    jobs: int | None = None,
    advance: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Iterator[dict[str, Any]]:
    """Compute what is missing and yield each claim's record as soon as it is complete.

    jobs: worker processes of one thread each; as many as this process has cores by default. Under
    torchrun every process takes part in every chunk, one after the other, and rank 0 writes.
    data: folders of data sets by name, see `Place`.
    advance: called with chunks done, chunks in all, and the name of the one just finished.
    """
    folders = dict(data or {})
    _check_data(claims, scale, folders)
    runs = [ClaimRun.open(claim, scale, out) for claim in {c.name: c for c in claims}.values()]
    waiting: dict[Key, list[ClaimRun]] = {}
    chunks: dict[Key, Chunk] = {}
    for run in runs:
        for chunk in run.pending():
            key = (run.claim.compute, _key(chunk))
            waiting.setdefault(key, []).append(run)
            chunks[key] = chunk
    open_chunks = {run.claim.name: len(run.pending()) for run in runs}
    if not _rank():
        yield from (run.conclude() for run in runs if not open_chunks[run.claim.name])
    work = {key: (key[0], chunks[key], Place(out / scale / "training", folders)) for key in waiting}
    for done, (key, rows, seconds) in enumerate(_results(work, jobs or _cores()), start=1):
        advance(done, len(work), chunks[key].name)
        for run in waiting[key]:
            run.add(chunks[key], rows, seconds)
            open_chunks[run.claim.name] -= 1
            if not open_chunks[run.claim.name] and not _rank():
                yield run.conclude()


def judge_finished(claims: Sequence[Claim], scale: Scale, out: Path) -> Iterator[dict[str, Any]]:
    """Judge each claim by its complete seeds and compute nothing; those without any are left out.

    The record says how many of its parts are done.
    """
    for claim in claims:
        run = ClaimRun(claim, scale, RunDirectory(out / scale / claim.name))
        if chunks := run.finished_seeds():
            yield ClaimRun.open(claim, scale, out).conclude(chunks)


def _check_data(claims: Sequence[Claim], scale: Scale, folders: Mapping[str, Path]) -> None:
    """Raise before anything is computed if a data set is missing."""
    for name, folder in folders.items():
        if not folder.exists():
            raise RunError(f"--data-dir {f'{name}=' if name else ''}{folder}: no such folder")
    for claim in claims:
        for name in sorted(claim.needs(scale)):
            if Place(Path(), folders).folder(name) is None:
                raise RunError(
                    f"{claim.name} at scale {scale} needs data ({claim.size[scale]}): give "
                    f"--data-dir {name}=FOLDER, the folder that holds it; --scale smoke needs "
                    "none"
                )


def _results(
    work: Mapping[Key, tuple[Compute, Chunk, Place]], jobs: int
) -> Iterator[tuple[Key, list[Row], float]]:
    """Rows and seconds of every chunk, as they are finished."""
    if _under_torchrun():
        for key, arguments in work.items():
            yield key, *_timed(*arguments)
        return
    processes = ProcessPoolExecutor(
        min(jobs, max(len(work), 1)),
        multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
    )
    running: dict[Future[tuple[list[Row], float]], Key] = {}
    waiting = iter(work.items())
    try:
        while True:  # no more at a time than there are processes: an interruption starts no other
            for key, arguments in islice(waiting, jobs - len(running)):
                running[processes.submit(_timed, *arguments)] = key
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), *future.result()
    except BrokenProcessPool as reason:
        raise RunError(
            "a worker was killed: is there enough memory for --jobs processes?"
        ) from reason
    finally:
        processes.shutdown(wait=True, cancel_futures=True)


def _least_seeds(chunks: Sequence[Chunk]) -> int:
    """Seeds of the setting that has fewest."""
    seeds: dict[str, set[Any]] = {}
    for chunk in chunks:
        rest = {name: value for name, value in chunk.settings.items() if name != "seed"}
        key = json.dumps(rest, sort_keys=True)
        seeds.setdefault(key, set()).add(chunk.settings.get("seed", 0))
    return min(len(found) for found in seeds.values())


def _timed(compute: Compute, chunk: Chunk, place: Place) -> tuple[list[Row], float]:
    started = time.perf_counter()
    rows = compute(chunk, place)
    return rows, time.perf_counter() - started


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _rank() -> int:
    return int(os.environ.get("RANK", "0")) if _under_torchrun() else 0


def _begin_worker() -> None:
    """One thread for arithmetic, and one that ends the worker if its parent is killed."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    threadpool_limits(1)  # numpy's BLAS has threads of its own
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _cores() -> int:
    """Processes to use: one a core, or a single one where a GPU does the work."""
    import torch

    if torch.cuda.is_available():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(chunk: Chunk) -> str:
    return json.dumps([chunk.name, chunk.settings], sort_keys=True)


def _of_one_version(
    chunks: Sequence[Chunk], lines: Mapping[str, dict[str, Any]]
) -> tuple[list[Chunk], list[str]]:
    """The chunks whose rows one version of the trainer made, and the names of the others.

    Rows are compared within a seed: one that mixes versions is left out as a whole. Of several
    versions the one with most chunks stays.
    """
    versions: dict[Any, set[str]] = {}
    for chunk in chunks:
        made_by = json.dumps(lines[_key(chunk)].get("made_by"), sort_keys=True)
        versions.setdefault(_pairing(chunk), set()).add(made_by)
    pure = [*(versions[_pairing(c)] for c in chunks if len(versions[_pairing(c)]) == 1)]
    if not pure:
        raise RunError(
            f"every seed of {chunks[0].name.partition('-seed')[0]} mixes versions of the trainer: "
            "compute the claim again in another --out"
        )
    chosen = max(pure, key=pure.count)
    kept = [chunk for chunk in chunks if versions[_pairing(chunk)] == chosen]
    return kept, [chunk.name for chunk in chunks if chunk not in kept]


def _pairing(chunk: Chunk) -> tuple[Any, Any]:
    """Runs with the same of it are compared with each other."""
    return chunk.settings.get("data"), chunk.settings.get("seed")


def _draw(claim: Claim, rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained", dpi=110)
    claim.draw(rows, figure)
    figure.savefig(path)
