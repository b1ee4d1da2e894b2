"""A real sentence-transformers trainer on a tiny model with random weights, built offline."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from eigenbatch.core.contrast import Contrast
from eigenbatch.integrations.transformers import SpectralTrainerCallback
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.stopping import StopOn

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


def train(callback, directory: Path, *, accumulate: int = 1, model=None):
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
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": WORDS, "positive": positives}),
        loss=MultipleNegativesRankingLoss(model, scale=SCALE),
        callbacks=[callback],
    )
    trainer.train()
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
    assert taken[0].softmax.loss == pytest.approx(expected, rel=1e-4)


def test_the_model_is_left_without_hooks_and_the_callback_without_embeddings(tmp_path) -> None:
    model = tiny_model()
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE))
    train(callback, tmp_path, model=model)
    assert not model._forward_hooks
    assert not callback._captured


def test_skipped_steps_capture_nothing(tmp_path: Path) -> None:
    seen = []

    def embedding(output):
        seen.append(1)
        return output["sentence_embedding"]

    train(SpectralTrainerCallback(SpectralMonitor(1 / SCALE), embedding=embedding), tmp_path)
    assert len(seen) == 2, "anchors and positives of the first step only"


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
    assert train(callback, tmp_path, model=model).state.global_step == 2


def test_a_model_that_makes_one_embedding_is_reported_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = SpectralTrainerCallback(SpectralMonitor(1 / SCALE, every=1))
    callback._capture = lambda *_: None
    assert train(callback, tmp_path).state.global_step == STEPS
    assert "the model made 0 embeddings in this step, 2 are needed" in caplog.text
