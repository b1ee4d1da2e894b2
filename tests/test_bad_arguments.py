"""Every public function, constructor and method answers a wrong argument in our own words.

Each argument in turn becomes a numpy array, None, text and a fraction. Where its annotation allows
the value, the call may succeed; otherwise it must raise an error of ours that names the argument.
A new public name without a row in the table fails.
"""

import inspect
import re
import types
import typing
from pathlib import Path

import numpy as np
import pytest
import torch

import eigenbatch
import eigenbatch.batches
import eigenbatch.core
import eigenbatch.monitor
from clouds import cloud
from eigenbatch import (
    Auto,
    Blend,
    Contrast,
    EmbeddingCache,
    Greedy,
    IndexedDataset,
    Neighbours,
    PoolBalanced,
    PoolMax,
    PoolMin,
    Random,
    Schedule,
    SpectralBatchSampler,
    SpectralMonitor,
    StopOn,
)
from eigenbatch.batches import (
    AfterBatches,
    BatchBuilder,
    EveryNth,
    InTurn,
    IsotropyBelow,
    OnLossPlateau,
    Planner,
    RankSteady,
)
from eigenbatch.core import Moments, QueueSample, moments, spectrum
from eigenbatch.integrations.lightning import SpectralCallback
from eigenbatch.integrations.sinks import JsonLines, TensorBoard, WeightsAndBiases
from eigenbatch.integrations.torchmetrics import SpectralMetric
from eigenbatch.integrations.transformers import SpectralTrainerCallback
from eigenbatch.monitor import OnlineProbe, Reading, read_batch

pytestmark = pytest.mark.filterwarnings("ignore::eigenbatch.errors.NumericalWarning")

ROOMS = (
    eigenbatch,
    eigenbatch.core,
    eigenbatch.monitor,
    eigenbatch.batches,
)
RESULTS = {
    "Band", "BatchBand", "Cloud", "Decomposition", "Finding", "InfoNCE", "LossReport", "Outlook",
    "Plan", "Prediction", "Reading", "Spectrum", "VarianceBand",
}  # fmt: skip
"""Frozen records that the library makes: their constructors are not for callers."""

NO_CALLS = {"Planner", "Selector", "LOGGED"}  # two for users to write, and a set
PARTS = {"candidate_ranks", "miss_of", "trace_after_adding"}  # for studies: nothing is checked
HOOKS = {"prepare", "draw_from"}  # of planners: called with what the sampler has checked
TESTED_WITH_FILES = {"Comparison", "Recorder", "compare", "load_encoder"}
"""What needs folders: wrong arguments are tried in tests/runs and tests/train."""
WRONG = {"array": np.ones((4, 3)), "none": None, "text": "text", "fraction": 2.5}

Z = cloud("random", 12, 4)
IDS = torch.arange(12)


def pairs():
    return Contrast.paired(Z[:6], Z[6:])


def queued():
    return Contrast.queued(Z[:4], Z[4:8], Z[8:])


def cache():
    made = EmbeddingCache(12, 4)
    made.update(IDS, Z)
    return made


def sampler():
    return SpectralBatchSampler(cache(), 4, Random())


def plan():
    drawn = SpectralBatchSampler(cache(), 4, Neighbours())
    list(drawn)
    return drawn.plan


def halves():
    return Z[:6], Z[6:]


def auto():
    return Auto(0.1, held_out=halves, trained=halves)


def monitor():
    return SpectralMonitor(0.2, strict=True, every=1)


def outlook():
    return read_batch(pairs(), 0.2).outlook


class Logger:
    """Enough of a SummaryWriter and of a wandb run."""

    def _do_nothing(self, *args, **kwargs):
        pass

    add_scalar = add_text = define_metric = log = _do_nothing


def core():
    radius = {"count": 10, "rank": 2.0, "delta": 0.05, "kappa": 1.0, "constant": 1.0}
    band = {"contrast": pairs(), "tau": 0.2}
    return {
        "Contrast": (Contrast, {"anchors": Z, "keys": Z, "positive": IDS.roll(6), "itself": IDS,
                                "first_negative": 0}),
        "Contrast.cross": (Contrast.cross, {"anchors": Z, "keys": Z}),
        "Contrast.paired": (Contrast.paired, {"z1": Z, "z2": Z}),
        "Contrast.queued": (Contrast.queued, {"queries": Z, "keys": Z, "queue": Z,
                                              "batch_negatives": False}),
        "Moments": (Moments, {"count": 3, "sum": Z[0], "second": Z.T @ Z}),
        "Outlook.at_tau": (outlook().at_tau, {"tau": 0.2}),
        "Outlook.gathered": (outlook().gathered, {"concatenated": lambda rows: rows}),
        "Outlook.whitened": (outlook().whitened, {"eps": 1e-5}),
        "Outlook.with_negatives": (outlook().with_negatives, {"count": 4}),
        "QueueSample": (QueueSample, {"size": 4, "delta": 0.1, "kappa": 1.0, "constant": 1.0}),
        "bernstein_radius": (eigenbatch.core.bernstein_radius,
                             {"count": 3, "dim": 2, "top": 0.5, "delta": 0.1}),
        "cloud_of": (eigenbatch.core.cloud_of, {"z_or_moments": Z, "cloud_spectrum": spectrum(Z),
                                                "positive_squares": 1.0, "gram": None}),
        "decompose": (eigenbatch.core.decompose, band),
        "effective_rank_radius": (eigenbatch.core.effective_rank_radius, radius),
        "frobenius_diversity": (eigenbatch.core.frobenius_diversity,
                                {"candidates": Z, "batch": Z}),
        "gradient_band": (eigenbatch.gradient_band, {
            "contrast": queued(), "tau": 0.2, "method": "queue", "directions": 1,
            "smoothness": 0.5, "sampling": "independent", "max_spectrum": None,
            "fourth_moment": None, "queue": None, "generator": None}),
        "infonce": (eigenbatch.infonce, band),
        "isotropy_gap": (eigenbatch.isotropy_gap, {"z": Z, "unbiased": True, "normalize": True}),
        "leave_out_top_eigenvalues": (eigenbatch.leave_out_top_eigenvalues,
                                      {"z": Z, "positive": IDS.roll(6)}),
        "moments": (moments, {"z": Z, "normalize": True}),
        "negative_tops": (eigenbatch.core.negative_tops, {"contrast": pairs()}),
        "participation_ratio": (eigenbatch.participation_ratio,
                                {"z": Z, "unbiased": True, "normalize": True}),
        "queue_ceiling": (eigenbatch.core.queue_ceiling, {"sampled_top": 0.2, "radius": 0.1}),
        "rayleigh_scores": (eigenbatch.core.rayleigh_scores, {"candidates": Z, "batch": Z}),
        "sampling_inflation": (eigenbatch.core.sampling_inflation,
                               {"negative_count": 4, "correlation": 0.1}),
        "spectrum": (spectrum, {"z_or_moments": Z, "normalize": True}),
        "subgaussian_radius": (eigenbatch.core.subgaussian_radius, radius),
        "variance_band": (eigenbatch.variance_band, band),
        "variance_coefficient": (eigenbatch.core.variance_coefficient,
                                 {"negative_count": 4, "tau": 0.2}),
        "whiten": (eigenbatch.whiten, {"z": Z, "eps": 1e-5, "renormalize": True}),
    }  # fmt: skip


def batches():
    choice = {"pool": Z, "batch_size": 3, "generator": torch.Generator()}
    parts = {"selector": Random(), "otherwise": Random()}
    window = {"window": (1.0, 2.0)}
    made = {
        "Random": (Random(), None),
        "PoolMax": (PoolMax(), {"normalize": True}),
        "PoolMin": (PoolMin(), {"normalize": True}),
        "PoolBalanced": (PoolBalanced(), {"fraction": 0.5, "normalize": True} | window),
        "Greedy": (Greedy(), {"probe": 4, "score": "spectral", "literal": False} | window),
        "Neighbours": (Neighbours(), None),
        "Auto": (auto(), {"tau": 0.1, "held_out": halves, "trained": halves, "limit": 5.0}),
        "Blend": (Blend(0.5), {"weight": 0.5}),
        "InTurn": (InTurn(Greedy()), {"selector": Greedy()}),
        "Schedule": (Schedule(), {"warmup": Random(), "then": Random(), "when": AfterBatches(1)}),
        "EveryNth": (EveryNth(Random(), 2, Random()), parts | {"every": 2}),
        "OnLossPlateau": (OnLossPlateau(Random(), Random()), parts | {"tolerance": 0.1, "span": 2}),
        "AfterBatches": (AfterBatches(1), {"count": 1}),
        "IsotropyBelow": (IsotropyBelow(), {"percent": 5.0}),
        "RankSteady": (RankSteady(), {"tolerance": 0.1}),
    }  # fmt: skip
    rows = {
        "BatchBuilder": (BatchBuilder, {"batch_size": 3, "probe": 2}),
        "BatchBuilder.offer": (BatchBuilder(3).offer, {"ids": IDS, "z": Z}),
        "OnLossPlateau.observe": (OnLossPlateau(Random(), Random()).observe, {"loss": 1.0}),
        "Plan.scalars": (plan().scalars, {"batch": 1}),
        "select": (eigenbatch.select, choice | {"selector": Random(), "groups": IDS,
                                                "apart": 0.9}),
    }  # fmt: skip
    for name, (one, arguments) in made.items():
        if arguments is not None:
            rows[name] = (type(one), arguments)
        if isinstance(one, AfterBatches | IsotropyBelow | RankSteady):
            rows[f"{name}.__call__"] = (one, {"rows": Z, "handed_out": 1})
        elif callable(one):
            rows[f"{name}.__call__"] = (one, choice)
        if isinstance(one, Planner):
            given = {"rows": Z[:, None], "batch_size": 3, "generator": torch.Generator()}
            rows[f"{name}.plan"] = (one.plan, given)
            rows[f"{name}.load_state_dict"] = (one.load_state_dict, {"state": one.state_dict()})
    return rows


def stateful():
    made, drawn, watching = cache(), sampler(), monitor()
    stop = StopOn("collapsing")
    two = EmbeddingCache(12, 4, towers=2)
    return {
        "check_loss": (eigenbatch.check_loss, {
            "loss": lambda z1, z2: ((z1 - z2) ** 2).sum(), "tau": 0.2, "form": None, "pairs": None,
            "dim": 8, "processes": None, "seed": 0}),
        "EmbeddingCache": (EmbeddingCache, {"size": 3, "dim": 4, "towers": 1,
                                            "dtype": torch.float16, "device": "cpu", "path": None}),
        "EmbeddingCache.age": (made.age, {"ids": IDS}),
        "EmbeddingCache.fill": (made.fill, {"embed": lambda z: z, "loader": [(IDS, Z)],
                                            "progress": False}),
        "EmbeddingCache.get": (made.get, {"ids": IDS, "tower": 0}),
        "EmbeddingCache.load_state_dict": (made.load_state_dict, {"state": made.state_dict()}),
        "EmbeddingCache.gather": (made.gather, {"ids": IDS, "group": None}),
        "EmbeddingCache.rows": (made.rows, {"ids": IDS}),
        "EmbeddingCache.update": (made.update, {"ids": IDS, "z": Z, "second": None}),
        "EmbeddingCache.update of two": (two.update, {"ids": IDS, "z": Z, "second": Z}),
        "OnlineProbe": (OnlineProbe, {"classes": 3, "memory": 8, "window": 2}),
        "OnlineProbe.__call__": (OnlineProbe(3), {"z": Z, "labels": IDS % 3}),
        "OnlineProbe.load_state_dict": (OnlineProbe(3).load_state_dict,
                                        {"state": OnlineProbe(3).state_dict()}),
        "IndexedDataset": (IndexedDataset, {"dataset": [1, 2]}),
        "SpectralBatchSampler": (SpectralBatchSampler, {
            "cache": made, "batch_size": 4, "planner": Greedy(), "tau": 0.1, "groups": IDS,
            "seed": 0, "drop_last": True, "shard": True, "horizon": 8, "pool_size": 8,
            "replace": False}),
        "SpectralBatchSampler.load_state_dict": (drawn.load_state_dict,
                                                 {"state": drawn.state_dict()}),
        "SpectralBatchSampler.ids": (drawn.ids, {"batch": 0}),
        "SpectralBatchSampler.set_epoch": (drawn.set_epoch, {"epoch": 1}),
        "SpectralBatchSampler.state_dict": (drawn.state_dict, {"consumed": 0}),
        "SpectralMonitor": (SpectralMonitor, {"tau": 0.2, "every": 1, "method": "certified",
                                              "quiet": True, "strict": True, "sync": False,
                                              "group": None}),
        "SpectralMonitor.reads": (watching.reads, {"step": 1}),
        "Reading.scalars": (Reading().scalars, {"all": True}),
        "SpectralMonitor.say_through": (watching.say_through, {"say": print}),
        "SpectralMonitor.__call__": (watching, {"z1": Z, "z2": Z, "views": None, "contrast": None,
                                                "layout": "paired", "loss": None, "ids": None,
                                                "queue_ids": None, "step": None}),
        "SpectralMonitor.load_state_dict": (watching.load_state_dict,
                                            {"state": watching.state_dict()}),
        "StopOn": (StopOn, {"names": ("collapsing",), "patience": 2}),
        "StopOn.__call__": (stop, {"reading": None}),
        "read_batch": (read_batch, {"contrast": queued(), "tau": 0.2, "method": "certified",
                                    "ids": IDS[:4], "queue_ids": IDS[:4], "inputs": None,
                                    "loss": None, "ranks": None}),
    }  # fmt: skip


def adapters():
    reading = monitor()(Z, Z + 1)
    callback = {
        "monitor": monitor(),
        "layout": Contrast.cross,
        "sinks": (),
        "stop_on": None,
        "record": None,
        "cache": None,
        "sampler": None,
        "ids": lambda outputs: IDS,
        "log_all": False,
    }
    return {
        "SpectralCallback": (SpectralCallback, callback | {
            "embeddings": lambda outputs: (Z, Z), "name": "spectral", "probe": None,
            "labels": len, "compare_loss": True}),
        "SpectralTrainerCallback": (SpectralTrainerCallback, callback | {
            "embedding": lambda output: Z, "probe": OnlineProbe(3), "labels": len}),
        "SpectralMetric": (SpectralMetric, {"dimension": 4}),
        "SpectralMetric.update": (SpectralMetric(4).update, {"z": Z}),
        "JsonLines": (JsonLines, {"path": "readings.jsonl"}),
        "JsonLines.__call__": (JsonLines("readings.jsonl"), {"reading": reading}),
        "TensorBoard": (TensorBoard, {"writer": Logger(), "all": True}),
        "TensorBoard.__call__": (TensorBoard(Logger()), {"reading": reading}),
        "WeightsAndBiases": (WeightsAndBiases, {"run": Logger(), "all": True}),
        "WeightsAndBiases.__call__": (WeightsAndBiases(Logger()), {"reading": reading}),
    }  # fmt: skip


TABLES = {"core": core, "batches": batches, "stateful": stateful, "adapters": adapters}
ALSO_FINE = {("IndexedDataset", "dataset", "array"), ("IndexedDataset", "dataset", "text")}
"""Anything with items and a length is a map-style dataset."""


def expected_rows():
    """Public functions, constructors with arguments, and public methods with arguments."""
    public = {name: getattr(room, name) for room in ROOMS for name in room.__all__}
    for name, one in public.items():
        if name in NO_CALLS | PARTS | TESTED_WITH_FILES:
            continue
        if not inspect.isclass(one):
            yield name
            continue
        bases = [base for base in one.__mro__ if base.__module__.startswith("eigenbatch")]
        made_here = any("__init__" in vars(base) for base in bases)
        if name not in RESULTS and made_here and parameters(one):
            yield name
        for base in bases:
            for method, raw in vars(base).items():
                is_ours = not method.startswith("_") or method == "__call__"
                is_ours &= method not in HOOKS
                callable_part = isinstance(raw, types.FunctionType | classmethod)
                if (
                    is_ours
                    and callable_part
                    and len(parameters(getattr(one, method)))
                    > (isinstance(raw, types.FunctionType))
                ):
                    yield f"{name}.{method}"


def parameters(call):
    return inspect.signature(call).parameters


def test_every_public_call_has_a_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = set().union(*(table() for table in TABLES.values()))
    assert set(expected_rows()) - rows == set()


def test_records_that_the_library_makes_are_frozen():
    for name in RESULTS:
        record = next(getattr(room, name) for room in ROOMS if name in room.__all__)
        assert record.__dataclass_params__.frozen


def allowed(annotation, kind):
    """Whether the annotation allows a value of this kind."""
    options = [annotation, *typing.get_args(annotation)]
    match kind:
        case "none":
            return type(None) in options
        case "text":
            return str in options or Path in options
        case "fraction":
            return float in options
    return False


def called(call, arguments):
    arguments = dict(arguments)
    names = arguments.pop("names", ())  # the only *arguments
    return call(*(names if isinstance(names, tuple) else (names,)), **arguments)


@pytest.mark.parametrize("table", TABLES)
def test_wrong_arguments_are_named_in_an_error_of_ours(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for row, (call, arguments) in TABLES[table]().items():
        assert set(arguments) == set(parameters(call)), row
        called(call, arguments)
        for name, kind in ((name, kind) for name in arguments for kind in WRONG):
            may_pass = allowed(parameters(call)[name].annotation, kind)
            may_pass |= (row, name, kind) in ALSO_FINE
            try:
                called(call, arguments | {name: WRONG[kind]})
            except Exception as error:
                ours = isinstance(error, ValueError | TypeError)
                ours &= type(error).__module__.startswith("eigenbatch")
                if not ours or not re.search(rf"\b{name}\b", str(error)):
                    wrong.append(f"{row}({name}={kind}): {type(error).__name__}: {error}")
            else:
                if not may_pass:
                    wrong.append(f"{row}({name}={kind}): no error")
    assert not wrong, "\n".join(wrong)
