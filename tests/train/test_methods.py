import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from eigenbatch import Contrast, infonce, spectrum, whiten
from eigenbatch.errors import ParameterError
from eigenbatch.train.batch import Batch
from eigenbatch.train.methods.clip import CLIP
from eigenbatch.train.methods.moco import MoCo
from eigenbatch.train.methods.simclr import Alternating, SimCLR, SupCon
from eigenbatch.train.objectives import DistanceWeighted, MixedNegatives


def linear(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh()), nn.Linear(16, 8)


def batch(seed=0, b=6):
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, b, 3, 2, 2, generator=generator)
    return Batch(first, second, torch.arange(b) % 3)


def unit_rows(n, d):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return rows / rows.norm(dim=1, keepdim=True)


def test_simclr_loss_is_that_of_the_contrast_it_reports():
    outcome = SimCLR(*linear(), tau=0.2)(batch())
    contrast = outcome.contrast()
    assert contrast.negative_count == 10
    torch.testing.assert_close(outcome.loss, infonce(contrast, 0.2).loss.mean())
    assert not outcome.embeddings.requires_grad


def test_a_transform_reaches_the_loss_and_the_embeddings():
    outcome = SimCLR(*linear(), transform=whiten)(batch(b=32))
    plain = SimCLR(*linear())(batch(b=32))
    assert spectrum(outcome.contrast().keys).top < spectrum(plain.contrast().keys).top
    outcome.loss.backward()


def test_supcon_uses_the_labels():
    first, second, labels = batch()
    method = SupCon(*linear())
    assert (
        method(Batch(first, second, labels)).loss
        != method(Batch(first, second, torch.arange(6))).loss
    )
    alone = method(Batch(first, second, torch.arange(6))).loss
    torch.testing.assert_close(alone, SimCLR(*linear())(Batch(first, second, labels)).loss)


def moco(**options):
    return MoCo(*linear(), queue_size=16, dim=8, **options)


def test_the_queue_fills_as_a_ring_of_the_newest_keys():
    method = moco(momentum=1.0)
    keys = []
    for seed in range(5):
        first, second, labels = batch(seed)
        method(Batch(first, second, labels))
        with torch.no_grad():
            z = method.key_head(method.key_encoder(second))
            keys.append(z / z.norm(dim=1, keepdim=True))
        assert int(method.fill) == min(16, 6 * (seed + 1))
    newest = torch.cat(keys)[-16:]
    stored = sorted(method.queue.tolist())
    torch.testing.assert_close(torch.tensor(stored), torch.tensor(sorted(newest.tolist())))


def test_the_queue_in_warm_up_offers_only_what_it_holds():
    method = moco()
    assert method(batch(0)).contrast().negative_count == 5
    assert method(batch(1)).contrast().negative_count == 6
    outcome = method(batch(2))
    assert outcome.contrast().negative_count == 12
    torch.testing.assert_close(outcome.loss, infonce(outcome.contrast(), 0.2).loss.mean())


def test_the_key_encoder_follows_with_momentum_and_gets_no_gradient():
    method = moco(momentum=0.9)
    with torch.no_grad():
        for p in method.encoder.parameters():
            p.add_(1.0)
    before = [p.clone() for p in method.key_encoder.parameters()]
    outcome = method(batch())
    outcome.loss.backward()
    queries = method.encoder.parameters()
    for slow, old, fast in zip(method.key_encoder.parameters(), before, queries, strict=True):
        torch.testing.assert_close(slow, 0.9 * old + 0.1 * fast)
        assert slow.grad is None


def test_evaluation_mode_leaves_queue_and_key_encoder_alone():
    method = moco().eval()
    method(batch())
    assert int(method.fill) == 0


@pytest.mark.parametrize("negatives", [MixedNegatives(4), DistanceWeighted(5)])
def test_negative_side_baselines_train(negatives):
    method = moco(negatives=negatives)
    for seed in range(3):
        method.zero_grad()
        method(batch(seed)).loss.backward()
    assert all(p.grad.isfinite().all() for p in method.encoder.parameters())


def test_alternating_whitens_every_second_period():
    transform = Alternating(period=2)
    rows = torch.nn.functional.normalize(torch.randn(64, 4) * torch.tensor([5.0, 1, 1, 1]))
    changed = [not torch.equal(transform(rows), rows) for _ in range(7)]
    assert changed == [False, False, True, True, False, False, True]


def test_alternating_may_begin_later():
    transform = Alternating(2, after=3)
    rows = unit_rows(16, 4)
    changed = [not torch.equal(transform(rows), rows) for _ in range(9)]
    assert changed == [False] * 5 + [True] * 2 + [False] * 2


def test_moco_may_contrast_with_the_batch_too():
    method = MoCo(*linear(), tau=0.2, queue_size=10, dim=8, batch_negatives=True)
    method(batch(0))
    outcome = method(batch(1))
    contrast = outcome.contrast()
    assert contrast.negative_count == 6 + 5  # the queue, and the other keys of the batch
    torch.testing.assert_close(outcome.loss, infonce(contrast, 0.2).loss.mean())


def test_keys_are_read_in_random_parts_and_come_back_in_order():
    """Without batch norm the parts do not matter; with it every key has other statistics."""
    whole = MoCo(*linear(), queue_size=10, dim=8)
    parts = MoCo(*linear(), queue_size=10, dim=8, key_groups=3)
    torch.testing.assert_close(parts(batch()).second, whole(batch()).second)
    encoder, head = linear()
    normed = nn.Sequential(encoder, nn.BatchNorm1d(16))
    whole, parts = (MoCo(normed, head, queue_size=10, dim=8, key_groups=g) for g in (1, 3))
    assert not torch.allclose(parts(batch()).second, whole(batch()).second)
    uneven = MoCo(normed, head, queue_size=100, dim=8, key_groups=8)
    sizes = []
    uneven.key_encoder.register_forward_hook(lambda _, inputs, out: sizes.append(len(out)))
    uneven._keys(torch.randn(25, *batch()[0].shape[1:]))
    assert sorted(sizes) == [3] * 7 + [4]
    with pytest.raises(ParameterError, match="key_groups=4 parts of 6 images"):
        MoCo(*linear(), queue_size=10, dim=8, key_groups=4)(batch())
    with pytest.raises(ParameterError, match="key_groups"):
        MoCo(*linear(), queue_size=10, dim=8, key_groups=0)


def test_bad_values_raise():
    with pytest.raises(ParameterError, match="tau"):
        SimCLR(*linear(), tau=0)
    with pytest.raises(ParameterError, match="queue_size"):
        MoCo(*linear(), queue_size=0)
    with pytest.raises(ParameterError, match="period"):
        Alternating(0)


def clip(**options):
    encoders, heads = zip(linear(0), linear(1), strict=True)
    return CLIP(encoders, heads, **options)


def test_clip_is_the_mean_of_both_directions_and_learns_its_temperature():
    method = clip(tau=0.1)
    outcome = method(batch())
    z1, z2 = outcome.embeddings, outcome.second
    forth, back = (infonce(Contrast.cross(*pair), 0.1).loss.mean() for pair in ((z1, z2), (z2, z1)))
    torch.testing.assert_close(outcome.loss, (forth + back) / 2)
    outcome.loss.backward()
    assert method.log_scale.grad != 0
    assert method.tau == pytest.approx(0.1)
    with torch.no_grad():
        method.log_scale.fill_(20.0)
    assert method.tau == 0.01
    method.zero_grad()
    method(batch()).loss.backward()
    assert method.log_scale.grad != 0  # so that it can come back
    assert method.log_scale < 5
    assert clip(learn_tau=False).log_scale.requires_grad is False


def test_supcon_without_labels_says_what_to_use():
    first, second, _ = batch()
    with pytest.raises(ParameterError, match="use simclr"):
        SupCon(*linear())(Batch(first, second))


METHODS = {
    "CLIP": lambda: clip().double(),
    "SimCLR": lambda: SimCLR(*linear()).double(),
    "SupCon": lambda: SupCon(*linear()).double(),
    "MoCo": lambda: MoCo(*linear(), queue_size=64, dim=8).double(),
}


def gradients(method, *, rank=0, world=1):
    """After two batches: MoCo's second sees a queue filled by all processes."""
    for seed in range(2):
        first, second, labels = (x.chunk(world)[rank] for x in batch(seed, b=16))
        method.zero_grad()
        method(Batch(first.double(), second.double(), labels)).loss.backward()
    return [p.grad for p in method.parameters() if p.grad is not None]


@pytest.mark.slow
def test_gradients_of_two_processes_agree_with_one(tmp_path):
    """The same global batch, split over two gloo processes under DDP."""
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}:{here.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(here / "two_processes.py")]
    processes = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "store", tmp_path / "found.pt"], env=environment
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for name, make in METHODS.items():
        for one, two in zip(gradients(make()), found[name], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
