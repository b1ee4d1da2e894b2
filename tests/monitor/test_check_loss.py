"""`check_loss` accepts every right loss, names every wrong one, and changes nothing."""

import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gathered_losses
import losses
import numpy as np
import pytest
import torch
from losses import TAU, nt_xent
from torch import nn
from torch.nn.functional import cross_entropy, dropout, logsigmoid, normalize
from typer.testing import CliRunner

from eigenbatch import check_loss
from eigenbatch.cli import app
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.errors import ArgumentTypeError, LossError, ParameterError
from eigenbatch.monitor import LossReport
from eigenbatch.monitor.check_calls import make_probes
from eigenbatch.monitor.check_forms import Form

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", losses.RIGHT)
def test_a_right_loss_is_accepted_and_called_by_its_name(name):
    loss, kind = losses.RIGHT[name]
    report = check_loss(loss, TAU)
    assert (report.right, report.kind, report.mistakes) == (True, kind, ()), report
    report.raise_if_wrong()


@pytest.mark.parametrize("name", losses.MEANT)
def test_what_may_be_meant_is_a_remark(name):
    loss, remark = losses.MEANT[name]
    report = check_loss(loss, TAU)
    assert report.right is True, report
    assert any(remark in one for one in report.remarks), report


@pytest.mark.parametrize("name", losses.WRONG)
def test_the_mistake_of_a_wrong_loss_is_named(name):
    loss, mistake = losses.WRONG[name]
    report = check_loss(loss, TAU)
    assert report.right is False, report
    assert any(mistake in one for one in report.mistakes), report
    with pytest.raises(LossError, match="mistake"):
        report.raise_if_wrong()


def families(tau):
    """Four right losses at any temperature."""

    def clip(z1, z2):
        logits, labels = z1 @ z2.T / tau, torch.arange(len(z1))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def moco(q, k, queue):
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / tau
        return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))

    def siglip(z1, z2):
        logits = normalize(z1, dim=1) @ normalize(z2, dim=1).T / tau - 10
        return -logsigmoid(logits * (2 * torch.eye(len(logits)) - 1)).sum() / len(logits)

    return [lambda z1, z2: nt_xent(z1, z2, tau), clip, moco, siglip]


@pytest.mark.parametrize("tau", [0.005, 0.02, 0.07, 0.5, 2.0, 10.0])
def test_no_right_loss_is_accused_at_any_temperature_or_seed(tau):
    for seed in range(4):
        for loss in families(tau):
            assert check_loss(loss, tau, seed=seed).right is True


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mistakes_are_named_for_any_seed(seed):
    for name in ("no self-mask", "mask -1e-9", "log scale", "interleaved", "z2 detached"):
        loss, mistake = losses.WRONG[name]
        assert any(mistake in one for one in check_loss(loss, TAU, seed=seed).mistakes), name


def test_the_reference_program_is_the_librarys_infonce():
    """Independent of the search: NT-Xent and one direction against the closed form of `core`."""
    probe = make_probes(TAU, 1, None, 32, 0, queue=False)["middle"]
    cosines = probe.rows @ probe.rows.T
    for form, contrast in (
        (Form(kind="", negatives="all"), Contrast.paired(probe.z1, probe.z2)),
        (Form(kind="", sides=(0,)), Contrast.cross(probe.z1, probe.z2)),
    ):
        value = form.terms(probe, 0, TAU).value(cosines, cosines)
        torch.testing.assert_close(value, infonce(contrast, TAU).loss.mean())


def test_cosines_of_a_probe_are_spread_by_about_tau():
    for tau in (0.01, 0.05, 0.1):
        probe = make_probes(tau, 1, None, 32, 0, queue=False)["large"]
        negatives = (probe.z1 @ probe.z2.T)[~torch.eye(len(probe.z1), dtype=torch.bool)]
        assert 0.5 * tau < negatives.std() < 2 * tau
    rows = make_probes(TAU, 1, None, 32, 0, queue=False)["orthonormal"].rows
    assert (rows @ rows.T - torch.eye(len(rows))).abs().max() < TAU


def test_a_temperature_of_one_cannot_be_decided():
    for wrong in (
        lambda a, b: nt_xent(a, b, 1.0),
        lambda a, b: losses._terms(a, b, scale=1).mean(),
    ):
        report = check_loss(wrong, tau=1)
        assert report.right is None
        assert "another temperature" in report.remarks[-1]


def test_a_temperature_that_the_loss_asks_for_is_passed():
    assert check_loss(lambda z1, z2, temperature: nt_xent(z1, z2, temperature), 0.2).right is True
    assert (
        check_loss(lambda z1, z2, temperature=0.5: nt_xent(z1, z2, temperature), 0.2).right is False
    )


def test_overflow_is_named_only_where_the_exponent_is_too_large():
    def naive(tau):
        def loss(z1, z2):
            exp = (normalize(z1, dim=1) @ normalize(z2, dim=1).T / tau).exp()
            return -(exp.diagonal() / exp.sum(1)).log().mean()

        return loss

    report = check_loss(naive(0.01), 0.01)
    assert report.right is False
    assert "overflow" in report.mistakes[0]
    assert check_loss(naive(0.05), 0.05).right is True


def test_another_loss_is_not_judged_and_what_it_does_is_said():
    report = check_loss(lambda z1, z2: ((z1 @ z2.T - torch.eye(len(z1))) ** 2).mean(), TAU)
    assert (report.right, report.kind) == (None, "unknown")
    assert "its own key pulled 1.00" in report.remarks[0]
    report = check_loss(lambda z1, z2: 2 - 2 * (normalize(z1) * normalize(z2)).sum(1).mean(), TAU)
    assert (report.right, report.kind) == (None, "unknown")
    assert "no denominator" in report.remarks[0]
    report = check_loss(lambda z1, z2: (normalize(z1) * normalize(z2)).sum().tanh(), TAU)
    assert report.right is False
    assert "its own key pushed 1.00" in report.mistakes[0]


def test_a_report_reads_well():
    text = str(check_loss(losses.no_self_mask, TAU))
    assert text.splitlines() == [
        "wrong: NT-Xent at tau = 0.1",
        "  mistake: no self-mask: every anchor is its own negative, fill the diagonal of the logits"
        " with -inf",
    ]


# --- What is given to a loss ---


@pytest.mark.parametrize(
    ("form", "loss", "kind"),
    [
        ("z1, z2", lambda *z: nt_xent(*z), "NT-Xent"),
        ("z1, z2, labels", lambda a, b, c: losses.supcon(a, b, c), "SupCon"),
        ("labels", lambda a, b, c: losses.supcon(a, b, c), "SupCon"),
        ("q, k, queue", lambda a, b, c: losses.moco(a, b, c), "InfoNCE with a queue (MoCo)"),
        ("embeddings, labels", lambda a, b: losses.metric_learning(a, b),
         "labelled pairs (pytorch-metric-learning)"),
        ("views", lambda a: losses.SupConLoss()(a), "NT-Xent"),
    ],
)  # fmt: skip
def test_form_says_what_to_pass(form, loss, kind):
    report = check_loss(loss, TAU, form=form)
    assert (report.right, report.kind) == (True, kind)


def test_a_fixed_batch_size_is_given_by_pairs():
    def fixed(z1, z2):
        return nt_xent(z1, z2) + torch.zeros(8, 2).mul(z1[:, :2]).sum()

    assert check_loss(fixed, TAU, pairs=8).right is True
    with pytest.raises(LossError, match="pairs="):
        check_loss(fixed, TAU)


class QueueInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", normalize(torch.randn(50, 32), dim=1))

    def forward(self, q, k):
        value = losses.moco(q, k, self.queue.clone())
        self.queue[: len(k)] = k.detach()
        return value


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, z1, z2):
        return nt_xent(self.layer(z1), self.layer(z2))


@pytest.mark.parametrize(
    ("loss", "remark"),
    [
        (QueueInside(), "(q, k, queue)"),
        (Projection(), "pass the part behind"),
        (lambda a, b: nt_xent(a.half(), b.half()), "float32"),
    ],
)
def test_what_cannot_be_checked_says_what_to_pass(loss, remark):
    report = check_loss(loss, TAU)
    assert report.right is None
    assert remark in report.remarks[0]


def fills_its_queue(q, k, queue):
    value = losses.moco(q, k, queue)
    queue[: len(k)] = k.detach()
    return value


def raises(z1, z2):
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda a, b: losses._terms(a, b), "mean()"),
        (lambda a, b: nt_xent(a, b) * torch.nan, "NaN"),
        (lambda a, b: nt_xent(dropout(a, 0.5), b), "random"),
        (lambda a, b: nt_xent(a, b).item(), "without .item()"),
        (lambda a, b: {"loss": nt_xent(a, b)}, "['loss']"),
        (lambda a, b: None, "got None"),
        (lambda a, b: nt_xent(a, b)[None], "squeeze"),
        (lambda a, b: torch.tensor(1.0), "whatever its rows are"),
        (lambda a, b: torch.tensor(1), "floating-point"),
        (lambda a, b, c, d: nt_xent(a, b), "form="),
        (fills_its_queue, "changes the queue"),
        (raises, "no such thing"),
    ],
)
def test_a_loss_that_cannot_be_checked_is_an_error_that_says_what_to_pass(loss, text):
    with pytest.raises(LossError) as caught:
        check_loss(loss, TAU)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"loss": 3}, ArgumentTypeError),
        ({"loss": losses.SigLip}, ArgumentTypeError),
        ({"tau": 0}, ParameterError),
        ({"tau": "0.1"}, ArgumentTypeError),
        ({"form": 3}, ArgumentTypeError),
        ({"pairs": 1}, ParameterError),
        ({"dim": 1}, ParameterError),
        ({"seed": -1}, ParameterError),
        ({"processes": 0}, ParameterError),
    ],
)
def test_a_wrong_argument_is_named(arguments, error):
    name = next(iter(arguments))
    with pytest.raises(error, match=name):
        check_loss(**{"loss": nt_xent, "tau": TAU} | arguments)


# --- Nothing is changed ---


class WithState(nn.Module):
    """Counts its calls and has a dropout that training mode would switch on."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(10.0))
        self.register_buffer("calls", torch.zeros(1))
        self.inside = nn.Dropout(0.0)

    def forward(self, z1, z2):
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        self.calls += 1
        return nt_xent(self.inside(z1), z2, 1 / self.logit_scale)


def test_a_module_keeps_its_weights_gradients_dtype_mode_and_buffers():
    module = WithState().eval()
    module.logit_scale.grad = torch.tensor(7.0)
    assert check_loss(module, TAU).right is True
    assert module.logit_scale.item() == 10
    assert module.logit_scale.grad.item() == 7
    assert module.logit_scale.dtype == torch.float32
    assert module.calls.item() == 0
    assert not module.training
    assert not module.inside.training


def test_random_states_are_kept():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    expected = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    check_loss(WithState(), TAU)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
    assert np.random.rand() == expected[2]  # noqa: NPY002


def test_a_loss_can_be_checked_inside_no_grad_autocast_and_another_default_dtype():
    loss, mistake = losses.WRONG["z2 detached"]
    torch.set_default_dtype(torch.float64)
    try:
        assert check_loss(nt_xent, TAU).right is True
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad(), torch.autocast("cpu"):
        assert check_loss(nt_xent, TAU).right is True
        assert mistake in check_loss(loss, TAU).mistakes[0]
    assert not torch.is_autocast_enabled("cpu")


def test_the_same_call_gives_the_same_report():
    assert check_loss(losses.moco, TAU) == check_loss(losses.moco, TAU)
    assert isinstance(check_loss(losses.moco, TAU), LossReport)


# --- Several processes ---


@pytest.mark.slow
@pytest.mark.parametrize("name", gathered_losses.RIGHT)
def test_a_right_gather_is_accepted(name):
    loss, kind = gathered_losses.RIGHT[name]
    report = check_loss(loss, TAU, processes=3)
    assert (report.right, report.kind) == (True, kind), report


@pytest.mark.slow
@pytest.mark.parametrize("name", gathered_losses.WRONG)
def test_the_mistake_of_a_gather_is_named(name):
    loss, mistake = gathered_losses.WRONG[name]
    report = check_loss(loss, TAU, processes=3)
    assert report.right is False, report
    assert any(mistake in one for one in report.mistakes), report


@pytest.mark.slow
def test_gradients_that_are_right_only_for_a_sum_over_processes_are_a_remark():
    for name in ("open_clip, default", "simclr, once"):
        report = check_loss(gathered_losses.RIGHT[name][0], TAU, processes=3)
        assert "gradients are summed over processes" in report.remarks[0]


@pytest.mark.slow
def test_two_processes_say_that_three_tell_more():
    report = check_loss(gathered_losses.simclr, TAU, processes=2)
    assert report.right is True
    assert "use three" in report.remarks[-1]


def raises_in_one(z1, z2):
    if torch.distributed.get_rank() == 1:
        raise RuntimeError("only here")
    return gathered_losses.simclr(z1, z2)


@pytest.mark.slow
def test_a_loss_that_raises_in_one_process_ends_in_seconds():
    start = time.perf_counter()
    with pytest.raises(LossError, match="in process 1 of 3: RuntimeError: only here"):
        check_loss(raises_in_one, TAU, processes=3)
    assert time.perf_counter() - start < 40


@pytest.mark.slow
def test_ranks_of_a_group_call_it_alike(tmp_path):
    """As under torchrun: every rank calls `check_loss` and gets the same report."""
    program = tmp_path / "ranks.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            import torch, torch.distributed as dist
            import gathered_losses
            from eigenbatch import check_loss
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            right = check_loss(gathered_losses.lightly, 0.1)
            wrong = check_loss(gathered_losses.wrong_order, 0.1)
            assert right.right is True and wrong.right is False, (right, wrong)
            every = [None, None]
            dist.all_gather_object(every, (str(right), str(wrong)))
            assert every[0] == every[1]
            dist.destroy_process_group()
            """
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, program],
            env={
                **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
                "RANK": str(rank), "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


# --- The command ---


def call(monkeypatch, *arguments):
    monkeypatch.chdir(HERE)
    return CliRunner().invoke(app, ["check", *arguments])


def test_the_command_exits_with_0_1_or_2(monkeypatch):
    assert call(monkeypatch, "losses:nt_xent").exit_code == 0
    result = call(monkeypatch, "losses:no_self_mask", "--tau", "0.1")
    assert result.exit_code == 1
    assert "no self-mask" in result.output
    assert call(monkeypatch, "losses:Module").exit_code == 0  # made without arguments
    for place in ("losses", "losses:none_such", "none_such:loss", "losses:TAU", "losses:raising"):
        assert call(monkeypatch, place).exit_code == 2, place
    assert call(monkeypatch, "losses:nt_xent", "--tau", "0").exit_code == 2


def test_the_command_prints_json(monkeypatch):
    result = call(monkeypatch, "losses:one_view_twice", "--json")
    assert '"right": false' in result.output
