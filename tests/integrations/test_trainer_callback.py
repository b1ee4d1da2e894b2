"""A real sentence-transformers trainer on a tiny model with random weights, built offline."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    StaticEmbedding,
    WordEmbeddings,
)
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from eigenbatch import EmbeddingCache, Greedy, SpectralBatchSampler
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError, RunError
from eigenbatch.integrations.columns import Captured
from eigenbatch.integrations.sentence_transformers import HardBatches
from eigenbatch.integrations.transformers import SpectralTrainerCallback
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.runs import read_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

SCALE, PAIRS, STEPS = 20.0, 8, 6
WORDS = [f"w{k}" for k in range(PAIRS * STEPS)]


def tiny_model() -> SentenceTransformer:
    tokenizer = Tokenizer(WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = torch.randn(len(WORDS), 16, generator=torch.Generator().manual_seed(0))
    return SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights.numpy())], device="cpu"
    )


def sliceable_model() -> SentenceTransformer:
    """Cached losses refuse a StaticEmbedding, which cannot encode a part of a batch."""
    weights = torch.randn(len(WORDS), 16, generator=torch.Generator().manual_seed(0)).numpy()
    tokenizer = WhitespaceTokenizer(vocab=WORDS, stop_words=[])
    words = WordEmbeddings(tokenizer, weights, update_embeddings=True)
    return SentenceTransformer(modules=[words, Pooling(16)], device="cpu")


def train(
    callback,
    directory: Path,
    *,
    accumulate=1,
    model=None,
    loss=None,
    resume=None,
    data=None,
    **changes,
):
    model = model or tiny_model()
    following = [*WORDS[1:], WORDS[0]]
    positives = [f"{word} {other}" for word, other in zip(WORDS, following, strict=True)]
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            str(directory),
            per_device_train_batch_size=PAIRS,
            gradient_accumulation_steps=accumulate,
            num_train_epochs=1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **({"save_strategy": "no"} | changes),
        ),
        train_dataset=data or Dataset.from_dict({"anchor": WORDS, "positive": positives}),
        loss=loss or MultipleNegativesRankingLoss(model, scale=SCALE),
        callbacks=callback if isinstance(callback, list) else [callback],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_the_hook_captures_anchors_and_positives(tmp_path: Path) -> None:
    taken, seen = [], []

    def layout(anchors, positives):
        seen.append((anchors, positives))
        return Contrast.cross(anchors, positives)

    callback = SpectralTrainerCallback(
        SpectralMonitor(1 / SCALE, every=2, strict=True), layout=layout, sinks=[taken.append]
    )
    train(callback, tmp_path)
    assert [reading.step for reading in taken] == [0, 2, 4]
    anchors, positives = seen[0]
    assert anchors.shape == positives.shape == (PAIRS, 16)
    assert not anchors.requires_grad
    logits = torch.nn.functional.cosine_similarity(anchors[:, None], positives[None], dim=2) * SCALE
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(PAIRS)).item()
    assert taken[0].loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mini_batch", [3, 4, PAIRS])
def test_a_loss_that_encodes_in_pieces_is_read_as_the_plain_one(mini_batch, tmp_path) -> None:
    def readings(kind, **options):
        taken, stored = [], EmbeddingCache(len(WORDS), 16, towers=2)
        model = sliceable_model()
        callback = SpectralTrainerCallback(
            SpectralMonitor(1 / SCALE, every=2, strict=True), sinks=[taken.append],
            cache=stored, ids=lambda inputs: inputs[0]["input_ids"][:, 0],
        )  # fmt: skip
        train(callback, tmp_path, model=model, loss=kind(model, scale=SCALE, **options))
        return [one.scalars() for one in taken], stored.get(range(len(WORDS)), tower=1)

    plain, rows = readings(MultipleNegativesRankingLoss)
    pieces, same = readings(CachedMultipleNegativesRankingLoss, mini_batch_size=mini_batch)
    assert len(plain) == STEPS // 2
    for one, other in zip(plain, pieces, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6, nan_ok=True)
    assert torch.allclose(rows, same, atol=1e-3)


def test_pieces_of_unnamed_columns_are_not_read(tmp_path, caplog) -> None:
    model = torch.nn.Identity()
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE))
    callback.on_train_begin(None, TrainerState(), None, model=model)
    with torch.no_grad():
        for _ in range(4):
            model({"sentence_embedding": torch.randn(8, 4)})
    callback.on_step_end(None, TrainerState(), None)
    assert "32 rows in all of None columns" in caplog.text


def test_keys_without_gradients_are_the_second_column() -> None:
    seen = []

    def layout(anchors, keys):
        seen.append((anchors, keys))
        return Contrast.cross(anchors, keys)

    model, columns = torch.nn.Identity(), torch.randn(2, 8, 4)
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE, every=1), layout=layout)
    callback.on_train_begin(None, TrainerState(), None, model=model)
    for gradients in (False, True), (True, False):
        for rows, enabled in zip(columns, gradients, strict=True):
            with torch.set_grad_enabled(enabled):
                model({"sentence_embedding": rows})
        callback.on_step_end(None, TrainerState(), None)
    assert [torch.equal(torch.stack(one), columns) for one in seen] == [True, True]


def test_the_model_is_left_without_hooks_and_the_callback_without_embeddings(tmp_path) -> None:
    model = tiny_model()
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE))
    train(callback, tmp_path, model=model)
    assert not model._forward_hooks
    assert not callback._captured


def test_a_second_run_after_an_interrupted_one_hooks_the_model_once(tmp_path) -> None:
    def interrupt(reading) -> None:
        raise KeyboardInterrupt

    model, taken = tiny_model(), []
    monitor = SpectralMonitor(1 / SCALE, every=1, strict=True)
    callback = SpectralTrainerCallback(monitor, sinks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        train(callback, tmp_path, model=model)
    callback._sinks = [taken.append]
    train(callback, tmp_path, model=model)
    assert len(taken) == STEPS
    assert all(reading.positive_similarity < 0.99 for reading in taken), "no duplicates"
    assert not model._forward_hooks


def test_the_end_of_a_run_that_never_began_is_nothing() -> None:
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE))
    callback.on_train_end(None, None, None)
    assert callback.monitor.due


@pytest.mark.parametrize("output", [torch.ones(8, 4), (torch.ones(8, 4),), {"other": 1}, None])
def test_an_output_without_embedding_raises_only_in_strict_mode(
    output, caplog: pytest.LogCaptureFixture
) -> None:
    class Model(torch.nn.Module):
        def forward(self):
            return output

    def step(monitor: SpectralMonitor) -> None:
        model, callback = Model(), SpectralTrainerCallback(monitor)
        callback.on_train_begin(None, TrainerState(), None, model=model)
        model()
        model()
        callback.on_step_end(None, None, None)

    step(SpectralMonitor(1 / SCALE))
    assert 'the model returned no "sentence_embedding"' in caplog.text
    with pytest.raises(ParameterError, match="give the callback embedding="):
        step(SpectralMonitor(1 / SCALE, strict=True))


def test_one_call_may_make_both_embeddings(tmp_path: Path) -> None:
    taken, z = [], torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Identity()
    callback = SpectralTrainerCallback(
        SpectralMonitor(0.1, every=1, strict=True), sinks=[taken.append],
        embedding=lambda out: (out.image_embeds, out.text_embeds),
    )  # fmt: skip
    state = TrainerState()
    callback.on_train_begin(None, state, None, model=model)
    model(SimpleNamespace(image_embeds=z[0], text_embeds=z[1]))
    callback.on_step_end(None, state, None)
    alone = SpectralMonitor(0.1, every=1, strict=True)(*z, layout="cross")
    assert taken[0].scalars() == alone.scalars()


def test_both_embeddings_in_pieces_are_put_together() -> None:
    captured, rows = Captured(), torch.arange(8.0).view(2, 4, 1)
    captured.columns = 2
    for enabled in (False, True):
        for part in rows.split(2, dim=1):
            with torch.set_grad_enabled(enabled):
                captured.add(tuple, None, part)
    assert [one.flatten().tolist() for one in captured.two_columns()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_a_monitor_that_reads_all_processes_is_taken(tmp_path: Path) -> None:
    taken = []
    monitor = SpectralMonitor(1 / SCALE, every=3, strict=True, sync=True)
    train(SpectralTrainerCallback(monitor, sinks=[taken.append]), tmp_path)
    assert [reading.first_tower is not None for reading in taken] == [True, True]


def test_batches_that_are_split_over_gpus_in_one_process_are_refused() -> None:
    two = SimpleNamespace(n_gpu=2)
    model = tiny_model()
    for callback in (SpectralTrainerCallback(SpectralMonitor(0.1)), HardBatches(model, Greedy())):
        with pytest.raises(ParameterError, match=r"2 GPUs .* torchrun --nproc_per_node=2"):
            callback.on_train_begin(two, TrainerState(), None, model=model)


def test_skipped_steps_capture_nothing(tmp_path: Path) -> None:
    seen = []

    def embedding(output):
        seen.append(1)
        return output["sentence_embedding"]

    train(SpectralTrainerCallback(SpectralMonitor(1 / SCALE), embedding=embedding), tmp_path)
    assert len(seen) == 2, "anchors and positives of the first step only"


def test_no_more_than_two_embeddings_are_kept_alive() -> None:
    model = torch.nn.Identity()
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE))
    callback.on_train_begin(None, TrainerState(), None, model=model)
    outputs = [{"sentence_embedding": torch.ones(8, 4)} for _ in range(3)]
    for output in outputs:
        model(output)
    assert len(callback._captured) == 2


def test_gradient_accumulation_reads_one_micro_batch(tmp_path: Path) -> None:
    taken = []
    monitor = SpectralMonitor(1 / SCALE, every=1, strict=True)
    train(SpectralTrainerCallback(monitor, sinks=[taken.append]), tmp_path, accumulate=2)
    assert len(taken) == STEPS // 2
    assert {reading.anchors for reading in taken} == {PAIRS}


def test_a_run_is_stopped_on_a_chosen_diagnosis(tmp_path: Path) -> None:
    model = tiny_model()
    model[0].embedding.weight.data[:] = 1.0
    monitor = SpectralMonitor(1 / SCALE, every=1)
    callback = SpectralTrainerCallback(monitor, stop_on=StopOn("collapsing", patience=2))
    assert train(callback, tmp_path, model=model).state.global_step == 3


def test_a_model_that_makes_one_embedding_is_reported_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE, every=1))
    callback._capture = lambda *_: None
    assert train(callback, tmp_path).state.global_step == STEPS
    assert "the model made 0 embeddings in this step, 2 are needed" in caplog.text


def test_a_resumed_run_goes_on_with_its_steps_and_its_history(tmp_path) -> None:
    whole, first, second = [], [], []
    for taken, changes in (
        (whole, {}),
        (first, {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}),
        (second, {"resume": str(tmp_path / "checkpoint-3")}),
    ):
        monitor = SpectralMonitor(1 / SCALE, every=1, strict=True)
        train(SpectralTrainerCallback(monitor, sinks=[taken.append]), tmp_path, **changes)
    assert [reading.step for reading in second] == list(range(3, STEPS))
    assert second[0].gradient_rolling_variance is not None  # the history goes on
    (tmp_path / "checkpoint-3" / "spectral_monitor.pt").unlink()
    late = []
    monitor = SpectralMonitor(1 / SCALE, every=1, strict=True)
    callback = SpectralTrainerCallback(monitor, sinks=[late.append])
    train(callback, tmp_path, resume=str(tmp_path / "checkpoint-3"))
    assert [reading.step for reading in late] == list(range(3, STEPS))


class Fails(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.step:
            raise RuntimeError("power cut")


def test_the_record_of_a_resumed_run_has_every_step_once(tmp_path: Path, caplog) -> None:
    def run(step=0, **changes):
        callback = SpectralTrainerCallback(
            SpectralMonitor(1 / SCALE, every=1, quiet=True), record=tmp_path / "run"
        )
        saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
        train([callback, Fails(step)], tmp_path, **saving | changes)

    def steps():
        lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        return [line["step"] for line in lines if "spectral/loss" in line]

    with pytest.raises(RuntimeError, match="power cut"):
        run(step=4)
    run(resume=str(tmp_path / "checkpoint-2"))
    assert steps() == [1, 2, 3, 4, 5]
    assert read_run(tmp_path / "run").finished
    run(resume=str(tmp_path / "checkpoint-5"), max_steps=STEPS)  # extended after its end
    assert steps() == [1, 2, 3, 4, 5, 6]
    assert read_run(tmp_path / "run").finished
    assert "was logged after step" not in caplog.text
    with pytest.raises(RunError, match="holds a finished run: give record= another folder"):
        run()


def test_a_new_run_sets_an_unfinished_record_aside(tmp_path: Path, caplog) -> None:
    def run(*more):
        monitor = SpectralMonitor(1 / SCALE, every=1, quiet=True)
        train([SpectralTrainerCallback(monitor, record=tmp_path / "run"), *more], tmp_path)

    with pytest.raises(RuntimeError, match="power cut"):
        run(Fails(4))
    run()
    assert read_run(tmp_path / "run").finished
    assert not read_run(tmp_path / "run-unfinished-1").finished
    assert "run-unfinished-1" in caplog.text


def test_readings_are_in_the_trainers_log_and_in_the_record(tmp_path: Path) -> None:
    monitor = SpectralMonitor(1 / SCALE, every=3, quiet=True)
    callback = SpectralTrainerCallback(monitor, record=tmp_path / "run")
    trainer = train(callback, tmp_path / "out", logging_steps=2, hub_token="hf_secret")
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert '"logging_steps": 2' in manifest
    assert "hf_secret" not in manifest
    logged = [line for line in trainer.state.log_history if "spectral/gradient" in line]
    assert [line["step"] for line in logged] == [1, 4]
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum("findings" in line for line in lines) == 2
    assert sum("loss" in line for line in lines) == 3, "what the Trainer logged itself"
    assert lines[-1]["finished"] == 1


def test_an_attached_trainer_reports_readings_through_its_own_log(tmp_path: Path) -> None:
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE, every=3, quiet=True))
    reported = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            reported.extend(name for name in logs if name == "spectral/gradient")

    model = tiny_model()
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            str(tmp_path), per_device_train_batch_size=PAIRS, num_train_epochs=1,
            report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"anchor": WORDS, "positive": WORDS}),
        loss=MultipleNegativesRankingLoss(model, scale=SCALE),
        callbacks=[callback, Reporter()],
    )  # fmt: skip
    callback.attach(trainer)
    trainer.train()
    assert len(reported) == 2


def test_a_checkpoint_holds_cache_and_sampler(tmp_path: Path) -> None:
    def parts():
        cache = EmbeddingCache(len(WORDS), 16)
        return cache, SpectralBatchSampler(cache, PAIRS, Greedy(), seed=5)

    cache, sampler = parts()
    batches = iter(sampler)
    ids = []

    def next_ids(inputs):
        ids.append(torch.tensor(next(batches)))
        return ids[-1]

    monitor = SpectralMonitor(1 / SCALE, quiet=True)
    callback = SpectralTrainerCallback(monitor, cache=cache, sampler=sampler, ids=next_ids)
    saving = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    train(callback, tmp_path, **saving)
    assert cache.filled.sum() == 3 * PAIRS
    rest = list(batches)
    restored, again = parts()
    resumed = SpectralTrainerCallback(SpectralMonitor(1 / SCALE), cache=restored, sampler=again)
    state = TrainerState(global_step=3)
    resumed.on_train_begin(TrainingArguments(str(tmp_path)), state, None, model=tiny_model())
    assert torch.equal(restored.get(ids[0]), cache.get(ids[0]))
    assert list(again) == rest


def test_after_the_end_of_an_epoch_a_resumed_run_counts_from_zero(tmp_path: Path) -> None:
    def resumable():
        sampler = SpectralBatchSampler(EmbeddingCache(len(WORDS), 16), PAIRS, Greedy())
        monitor = SpectralMonitor(1 / SCALE, quiet=True)
        return sampler, SpectralTrainerCallback(monitor, sampler=sampler)

    sampler, callback = resumable()
    args, ended = TrainingArguments(str(tmp_path)), TrainerState(global_step=len(sampler))
    (tmp_path / f"checkpoint-{len(sampler)}").mkdir()
    for _ in sampler:
        callback.on_step_end(args, TrainerState(), None)
    callback.on_save(args, ended, None)
    sampler, callback = resumable()
    callback.on_train_begin(args, ended, None, model=tiny_model())
    sampler.set_epoch(1)
    callback.on_epoch_begin(args, ended, None)
    next(iter(sampler))
    callback.on_step_end(args, ended, None)
    callback.on_save(args, ended, None)  # one batch of the next epoch
    saved = torch.load(
        tmp_path / f"checkpoint-{len(sampler)}" / "spectral_monitor.pt", weights_only=True
    )
    assert (saved["consumed"], saved["sampler"]["epoch"]) == (1, 1)


def test_losses_that_normalise_need_no_model_that_does(tmp_path: Path) -> None:
    taken = []
    monitor = SpectralMonitor(1 / SCALE, every=1, strict=True, quiet=True)
    trainer = train(
        SpectralTrainerCallback(monitor, sinks=[taken.append]), tmp_path, logging_steps=1
    )
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert [one.loss for one in taken] == pytest.approx(losses, rel=1e-3)
    assert "non-unit input" not in {found.name for one in taken for found in one.findings}


def test_pieces_of_several_data_sets_are_read(tmp_path: Path) -> None:
    taken, model = [], sliceable_model()
    monitor = SpectralMonitor(1 / SCALE, every=1, strict=True, quiet=True)
    pairs = Dataset.from_dict({"anchor": WORDS, "positive": WORDS[1:] + WORDS[:1]})
    triplets = pairs.add_column("negative", WORDS[2:] + WORDS[:2])
    train(
        SpectralTrainerCallback(monitor, sinks=[taken.append]), tmp_path, model=model,
        loss=CachedMultipleNegativesRankingLoss(model, scale=SCALE, mini_batch_size=3),
        data=DatasetDict(pairs=pairs, triplets=triplets),
    )  # fmt: skip
    assert len(taken) == 2 * STEPS
    assert {one.negatives for one in taken} == {PAIRS - 1}  # of the first two columns


def test_inputs_that_the_trainer_dropped_are_named() -> None:
    model = nn.Identity()
    callback = SpectralTrainerCallback(
        SpectralMonitor(1 / SCALE), ids=lambda inputs: inputs[0]["ids"]
    )
    callback.on_train_begin(None, TrainerState(), None, model=model)
    model({"sentence_embedding": torch.randn(8, 4)})
    model({"sentence_embedding": torch.randn(8, 4)})
    with pytest.raises(ParameterError, match=r"KeyError\('ids'\).*remove_unused_columns=False"):
        callback.on_step_end(None, TrainerState(), None)


def test_a_training_that_begins_again_has_a_record_of_its_own(tmp_path: Path, caplog) -> None:
    """As with auto_find_batch_size after memory ran out: there is no on_train_end."""
    monitor = SpectralMonitor(1 / SCALE, every=1, quiet=True)
    callback = SpectralTrainerCallback(monitor, record=tmp_path / "run")
    for _ in range(2):
        callback.on_train_begin(None, TrainerState(), None, model=nn.Identity())
        callback.on_log(None, SimpleNamespace(global_step=1), None, logs={"loss": 1.0})
    assert "unfinished run: it was moved" in caplog.text
    assert len(read_run(tmp_path / "run").series["loss"]) == 1


def test_further_calls_of_a_plain_model_are_no_hard_negatives_and_keys_may_be_more() -> None:
    taken, seen = [], []

    def layout(anchors, keys):
        seen.append(keys.shape)
        return Contrast.queued(anchors, keys[: len(anchors)], keys[len(anchors) :])

    loader = SimpleNamespace(dataset=Dataset.from_dict({name: [0] for name in "abc"}))
    for options, sizes in (({}, (8, 8, 8)), ({"layout": layout}, (8, 24))):
        monitor = SpectralMonitor(1 / SCALE, every=1, strict=True, quiet=True)
        callback = SpectralTrainerCallback(monitor, sinks=[taken.append], **options)
        model = nn.Identity()
        callback.on_train_begin(None, TrainerState(), None, model=model, train_dataloader=loader)
        for size in sizes:
            model({"sentence_embedding": torch.randn(size, 4)})
        callback.on_step_end(None, TrainerState(), None)
    assert [one.negatives for one in taken] == [7, 16]
    assert seen == [(24, 4)]
