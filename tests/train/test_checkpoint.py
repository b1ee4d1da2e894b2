"""Checkpoints: verified before they are loaded, the one before kept, damage explained."""

import pickle
import random

import pytest
import torch

from eigenbatch.errors import CheckpointError, RunError
from eigenbatch.runs import read_run
from eigenbatch.train.checkpoint_file import VERSION, load_checkpoint, previous, save_checkpoint
from small_runs import SMALL, StopAfter, facts, small, start

pytestmark = pytest.mark.slow


def save(path, step):
    save_checkpoint({"version": VERSION, "step": step, "rows": torch.arange(1000.0)}, path)


def refused(path):
    said = []
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, said.append)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert "weights_only" not in message
    assert "copy, or train again in another folder" in message
    return message


def test_a_single_flipped_bit_is_never_loaded(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, 1)
    whole = path.read_bytes()
    generator = random.Random(0)
    for _ in range(100):
        place = generator.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        refused(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_cut_off_checkpoint_is_refused(tmp_path, share):
    path = tmp_path / "checkpoint.pt"
    save(path, 1)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_foreign_and_malicious_files_are_refused_and_nothing_is_executed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    for content in (b"", b"garbage", pickle.dumps(Payload())):
        path.write_bytes(content)
        refused(path)
    torch.save({"version": VERSION, "bad": Payload()}, path)
    refused(path)
    torch.save({"version": VERSION}, path)  # not sealed by us
    refused(path)
    path.unlink()
    path.mkdir()
    assert "regular file" in refused(path)


def test_even_a_sealed_payload_is_not_executed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint({"version": VERSION, "bad": Payload()}, path)
    assert "cannot be read" in refused(path)
    save_checkpoint({"version": 99}, path)
    previous(path).unlink()
    assert "version" in refused(path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, 1)
    save(path, 2)
    assert load_checkpoint(path, print)["step"] == 2
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    said = []
    assert load_checkpoint(path, said.append)["step"] == 1
    assert "checkpoint.previous.pt" in said[0]
    path.unlink()  # a crash between the two renames
    assert load_checkpoint(path, said.append)["step"] == 1


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save(path, 1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, 2)
    assert load_checkpoint(path, print)["step"] == 1


def test_the_checkpoint_is_still_a_torch_file(tmp_path):
    save(tmp_path / "checkpoint.pt", 7)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 7


def test_a_run_resumes_from_the_checkpoint_before_with_the_same_result(tmp_path):
    run = small("evaluation.every=1", "budget.epochs=3")
    whole = start(run, tmp_path / "whole")
    directory = start(run, tmp_path / "run", observers=[StopAfter(12)])
    directory.checkpoint.write_bytes(directory.checkpoint.read_bytes()[:-5])
    assert facts(start(run, directory.path, resume=True)) == facts(whole)


@pytest.mark.parametrize("damage", ["cut", "change", "remove"])
def test_lost_lines_of_the_record_are_an_error_that_names_the_file(tmp_path, damage):
    directory = start(SMALL, tmp_path, observers=[StopAfter(7)])
    content = directory.metrics.read_bytes()
    lines = content.splitlines(keepends=True)
    changed = {
        "cut": b"".join(lines[:-2]),
        "change": content.replace(b'"loss": 6', b'"loss": 7', 1),
        "remove": b"".join([*lines[:3], *lines[4:]]),
    }[damage]
    directory.metrics.write_bytes(changed)
    with pytest.raises(RunError, match=r"metrics\.jsonl has lost or changed lines"):
        start(SMALL, tmp_path, resume=True)
    assert directory.metrics.read_bytes() == changed


def test_a_finished_run_with_a_hole_is_not_finished(tmp_path):
    directory = start(SMALL, tmp_path)
    assert read_run(tmp_path).finished
    lines = directory.metrics.read_bytes().splitlines(keepends=True)
    directory.metrics.write_bytes(b"".join([*lines[:4], *lines[5:]]))
    record = read_run(tmp_path)
    assert not record.finished
    assert any("lost or changed lines" in problem for problem in record.problems)
    with pytest.raises(RunError, match="lost or changed lines"):
        start(SMALL, tmp_path, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "seven"},
        {"method": {}},
        {"optimizer": []},
        {"sampler": {"epoch": [[]]}},
        {"parts": {"cache": 3}},
        {"record": {"lines": "x"}},
        {"generators": 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_wrong_types_in_a_checkpoint_are_one_clear_error(tmp_path, change):
    directory = start(SMALL, tmp_path, observers=[StopAfter(3)])
    state = load_checkpoint(directory.checkpoint, print)
    save_checkpoint(state | change, directory.checkpoint)
    with pytest.raises((CheckpointError, RunError)) as caught:
        start(SMALL, tmp_path, resume=True)
    assert len(str(caught.value).splitlines()) == 1
