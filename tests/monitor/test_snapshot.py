"""Readings of fixed batches have the numbers and findings they always had.

Recorded at commit 2411c22, before a reading became one flat record; since then only advice of "loss
mismatch" and "repeated ids" was reworded. On a processor with the same
instructions the numbers are equal to the last bit; elsewhere sums are rounded differently. To
record a change that was meant: `python tests/monitor/test_snapshot.py`, and say which and why.
"""

import json
import math
import warnings
from pathlib import Path

import pytest
import torch

from eigenbatch import Contrast, SpectralMonitor
from eigenbatch.monitor import read_batch

STORED = Path(__file__).with_name("snapshot.json")
TAU = 0.1


def batch(kind, n=48, d=24):
    """Two views of clustered rows, on a cone."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(12, d, generator=draw) * torch.arange(1, d + 1) ** -0.5
    rows = centres[torch.arange(n) % 12] + 0.7 * torch.randn(n, d, generator=draw) + 0.3
    views = [rows + 0.4 * torch.randn(n, d, generator=draw) for _ in range(2)]
    if kind == "copies":
        views = [rows, rows]
    return [view / view.norm(dim=1, keepdim=True) for view in views]


def plain():
    z1, z2 = batch("plain")
    queue = torch.nn.functional.normalize(
        torch.randn(96, 24, generator=torch.Generator().manual_seed(1)) + 0.2
    )
    ids = torch.arange(48)
    return {
        "paired": read_batch(Contrast.paired(z1, z2), TAU),
        "cross": read_batch(Contrast.cross(z1, z2), TAU, ids=ids % 40),
        "queued": read_batch(Contrast.queued(z1, z2, queue), TAU, ids=ids, queue_ids=ids.repeat(2)),
        "theorem": read_batch(Contrast.paired(z1, z2), TAU, method="theorem"),
        "copies": read_batch(Contrast.paired(*batch("copies")), 0.02),
    }


def monitored():
    z1, z2 = batch("plain")
    monitor = SpectralMonitor(TAU, every=1, quiet=True)
    readings = {
        "half": monitor(z1.half(), z2.half(), loss=1.0),
        "scaled": monitor(3 * z1, z2, layout="cross", ids=range(48)),
        "nan": monitor(z1 * math.nan, z2),
        "third": monitor(z2, z1),
    }
    moving = SpectralMonitor(TAU, every=1, quiet=True)
    for step in range(120):
        angle = torch.tensor(step / 60.0)
        turned = z1 * angle.cos() + z2.roll(1, 1) * angle.sin()
        reading = moving(turned / turned.norm(dim=1, keepdim=True), z2)
    return readings | {"after 120 steps": reading}


def told(reading):
    findings = [[f.name, f.severity, f.evidence, f.advice] for f in reading.findings]
    return {"scalars": reading.scalars(), "findings": findings, "selection": reading.selection}


def snapshot():
    with warnings.catch_warnings(action="ignore"):
        return {name: told(reading) for name, reading in (plain() | monitored()).items()}


def test_readings_are_what_they_were():
    stored, now = json.loads(STORED.read_text()), json.loads(json.dumps(snapshot()))
    exact = torch.backends.cpu.get_cpu_capability() == stored.pop("capability")
    assert now.keys() == stored.keys()
    for name, reading in stored.items():
        if exact:
            assert now[name] == reading, name
            continue
        assert now[name]["scalars"] == pytest.approx(reading["scalars"], rel=1e-3, abs=1e-4)
        assert [f[:2] for f in now[name]["findings"]] == [f[:2] for f in reading["findings"]]


if __name__ == "__main__":
    found = {"capability": torch.backends.cpu.get_cpu_capability(), **snapshot()}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
