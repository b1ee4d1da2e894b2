"""Run directories that look like real ones, made in milliseconds."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np

from eigenbatch.runs.record import Mark, closing_line

SETTINGS = {
    "data": "digits", "method": "simclr", "tau": 0.2, "encoder": "convnet", "dim": 128,
    "selector": "random", "batch_size": 128, "pool_size": None, "epochs": 12, "lr": 0.001,
    "seed": 0, "precision": "32-true",
}  # fmt: skip
GAINS = {"random": 0.0, "greedy-64": 0.03, "p3": 0.004}


def write_training_run(folder: Path, *, steps_per_epoch=40, finished=True, **changed) -> Path:
    """A healthy run of 12 epochs that was collapsing for a while in the middle."""
    settings = SETTINGS | changed
    write_manifest(folder, settings)
    generator = np.random.default_rng([settings["seed"], len(settings["selector"])])
    gain = GAINS.get(settings["selector"], 0.0)
    clock, lines = 0.0, []
    for epoch in range(settings["epochs"] if finished else settings["epochs"] // 2):
        for batch in range(steps_per_epoch):
            step = epoch * steps_per_epoch + batch + 1
            done = step / (steps_per_epoch * settings["epochs"])
            clock += 0.05 * (1 + gain) * generator.uniform(0.8, 1.3)
            place = {"step": step, "epoch": epoch, "seconds": clock}
            lines.append(place | step_numbers(generator, done, gain, epoch))
            if batch % (steps_per_epoch // 2) == 0:
                lines.append(place | reading(generator, done, gain))
        accuracy = 0.9 * (1 - np.exp(-3 * done)) + gain + generator.normal(0, 0.006)
        place = {"step": step, "epoch": epoch + 1, "seconds": clock}
        lines.append(place | {"knn": accuracy, "rankme": 10 + 20 * done})
    if finished:
        probes = {"linear": accuracy + 0.01, "linear_5_labels": accuracy - 0.1, "finished": 1}
        lines.append(lines[-1] | probes)
    write_metrics(folder, lines)
    return folder


def step_numbers(generator, done, gain, epoch):
    numbers = {
        "loss": 5.3 - 2.5 * done + generator.normal(0, 0.12),
        "step_seconds": 0.04,
        "waited_seconds": 0.003,
        "sampler/unknown": 0,
        "sampler/seconds": 0.0005 + 0.1 * gain,
    }
    if epoch:
        rank = 6 + 8 * done + generator.normal(0, 0.3)
        numbers |= {
            "sampler/participation_ratio": rank * (1 + 8 * gain),
            "sampler/baseline_participation_ratio": rank,
            "sampler/mean_age": generator.uniform(8, 16),
        }
    return numbers


def reading(generator, done, gain):
    sagging = 0.45 < done < 0.62
    decay = 0.35 if sagging else 0.12 - 0.07 * done - gain
    eigenvalues = np.exp(-decay * np.arange(128)) * generator.uniform(0.95, 1.05, 128)
    eigenvalues = np.sort(eigenvalues / eigenvalues.sum())[::-1]
    rank = float(1 / np.square(eigenvalues).sum())
    entropy = float(np.exp(-(eigenvalues * np.log(eigenvalues)).sum()))
    gradient = 11 * np.exp(-1.2 * done) * generator.uniform(0.9, 1.1)
    gap = float(100 * np.sqrt(128 / rank - 1))
    wobble = generator.uniform(0.9, 1.1) + 4 * gain
    numbers = {
        "miss": 0.995 - 0.4 * done * wobble, "alignment": 0.55 + 0.1 * done * wobble,
        "uniformity": -1.7 - (1.5 + 9 * gain) * done * wobble,
        "effective_negatives": 200 * np.exp(-2 * done) * wobble, "negatives": 254.0,
        "gradient": gradient, "certified_lower": gradient * 0.8, "certified_upper": gradient * 1.9,
        "paper_lower": gradient * 0.3, "paper_upper": gradient * 90,
        "sigma_hat": float(eigenvalues[0]), "participation_ratio": rank, "entropy_rank": entropy,
        "stable_rank": float(1 / eigenvalues[0]), "isotropy_gap": gap,
        "isotropy_gap_unbiased": gap * 0.93,
    }  # fmt: skip
    return {f"spectral/{name}": value for name, value in numbers.items()} | {
        "eigenvalues": eigenvalues[:32].tolist(),
        "findings": diagnoses(done, sagging),
    }


def diagnoses(done, sagging):
    if done < 0.1:
        return [finding("stuck at chance", "info", f"loss is {5.3 - done:.2f}, chance is 5.54")]
    if sagging:
        severity = "critical" if done > 0.55 else "warning"
        return [finding("dimensional collapse", severity, f"entropy rank falls, {done:.2f} of run")]
    return [finding("healthy", "info", "nothing else was found")]


def finding(name, severity, evidence, advice=None):
    advice = advice or f"what to do about {name}: a larger batch, a projection head"
    return {"name": name, "severity": severity, "evidence": evidence, "advice": advice}


def write_claim(folder: Path, **changed) -> Path:
    name = folder.name
    write_manifest(folder, {"claim": name, "scale": "smoke"})
    write_metrics(folder, [{"chunk": "one", "seconds": 1.0, "rows": [{"inside": 1}]}])
    verdict = {
        "claim": name, "section": "Section 4", "statement": "The band contains the gradient",
        "printed": "100 %", "criterion": "every one of 10,000 batches", "outcome": "reproduced",
        "measured": "10,000 of 10,000", "note": "", "scale": "smoke", "seeds": 5, "size": "n = 256",
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict | changed))
    (folder / "figure.png").write_bytes(png(320, 120))
    return folder


def write_manifest(folder: Path, settings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "config": settings, "device": "cpu", "commit": "c040807305c2", "machine": "x86_64",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))


def write_metrics(folder: Path, lines) -> None:
    """As a recorder would: a line that says "finished" closes the record."""
    path, texts = folder / "metrics.jsonl", []
    for line in lines:
        if line.get("finished"):
            line = closing_line(line, Mark.of(path, "".join(texts).encode()))
        texts.append(json.dumps(line) + "\n")
    path.write_text("".join(texts))


def write_comparison(folder: Path, *, seeds=4) -> Path:
    for selector in GAINS:
        for seed in range(seeds):
            run = folder / selector / f"seed-{seed}"
            write_training_run(run, selector=selector, seed=seed)
    return folder


def png(width: int, height: int) -> bytes:
    """A grey gradient."""
    row = b"\0" + bytes(255 * x // width for x in range(width))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", header),
            (b"IDAT", zlib.compress(row * height)),
            (b"IEND", b""),
        )
    )
