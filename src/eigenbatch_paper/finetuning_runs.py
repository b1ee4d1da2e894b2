"""Fine-tuning of a sentence encoder with sentence-transformers, for equal processor time."""

import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eigenbatch.errors import DataError
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.pairs import TEST_PICTURES, captions

MODEL, SCORED = "minilm", "stsb"
SCALE_OF_LOSS = 20.0


def needs(scale: Scale) -> frozenset[str]:
    """Scale smoke makes up its texts and trains word vectors."""
    return frozenset() if scale == "smoke" else frozenset({"flickr8k", MODEL, SCORED})


def finetuning_chunk(scale: Scale, seed: int, batches: str) -> Chunk:
    """One fine-tuning; batches: "random", "no-duplicates", "mined", "neighbours", "auto"."""
    settings = {
        "batches": batches, "batch_size": 32, "seconds": 0.5 if scale == "smoke" else 200.0,
        "learning_rate": 1e-2 if scale == "smoke" else 2e-5, "made_up": scale == "smoke",
        "seed": seed,
    }  # fmt: skip
    return Chunk(f"finetuning-{batches}-seed-{seed}", settings)


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train until the processor time is used up; encoding and mining beforehand are part of it."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import mine_hard_negatives
    from transformers import TrainerCallback

    from eigenbatch import Neighbours
    from eigenbatch.integrations.sentence_transformers import HardBatches

    class Watch(TrainerCallback):
        """Stops when the processor time is used up."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Asked after every step."""
            control.should_training_stop = time.process_time() - begun >= settings["seconds"]

    settings: Any = chunk.settings
    train, test, scored = _made_up() if settings["made_up"] else _texts(place)
    told = train[: len(train) // 20]  # of no arm: for Auto
    train = train[len(told) :]
    torch.manual_seed(settings["seed"])
    if settings["made_up"]:
        model = _word_vectors([text for pair in train + test for text in pair])
    else:
        model = SentenceTransformer(str(place.folder(MODEL)), device="cpu")
    before = _scores(model, test, scored)
    begun = time.process_time()
    anchors, positives = zip(*train, strict=True)
    data = Dataset.from_dict({"anchor": anchors, "positive": positives})
    callbacks: list[Any] = [Watch()]
    sampler: Any = "no_duplicates" if settings["batches"] == "no-duplicates" else "batch_sampler"
    if settings["batches"] == "mined":
        data = mine_hard_negatives(
            data, model, num_negatives=1, relative_margin=0.05, batch_size=64, verbose=False
        )
    elif settings["batches"] in ("neighbours", "auto"):
        told_pairs = Dataset.from_dict(
            {"anchor": [a for a, _ in told], "positive": [b for _, b in told]}
        )
        how: Any = (
            {"held_out": told_pairs} if settings["batches"] == "auto" else {"planner": Neighbours()}
        )
        sampler = HardBatches(model, **how, tau=1 / SCALE_OF_LOSS, encode_after=0)
        callbacks.append(sampler)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=scratch, num_train_epochs=1000, use_cpu=True,
                bf16=not settings["made_up"], dataloader_drop_last=True, batch_sampler=sampler,
                per_device_train_batch_size=settings["batch_size"], seed=settings["seed"],
                learning_rate=settings["learning_rate"], lr_scheduler_type="constant_with_warmup",
                warmup_steps=20, save_strategy="no", logging_strategy="no", report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=data,
            loss=MultipleNegativesRankingLoss(model, scale=SCALE_OF_LOSS),
            callbacks=callbacks,
        )  # fmt: skip
        trainer.train()
    used = time.process_time() - begun
    return [
        {
            **chunk.settings,
            **{f"{name}_before": value for name, value in before.items()},
            **_scores(model, test, scored),
            "steps": trainer.state.global_step,
            "used": used,
        }
    ]


Texts = Sequence[tuple[str, str]]


def _scores(model: Any, test: Texts, scored: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """Retrieval of the other caption, and rank correlation with human judgement, both 0 to 1."""
    from scipy.stats import spearmanr
    from torch.nn.functional import cosine_similarity

    def encoded(texts: Sequence[str]) -> Any:
        return model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False)

    mrr = mean_reciprocal_rank(*map(encoded, zip(*test, strict=True)))
    *sides, judged = zip(*scored, strict=True)
    first, second = map(encoded, sides)
    cosines = cosine_similarity(first, second).cpu().numpy()
    agreement = spearmanr(cosines, judged).statistic
    return {"mrr": mrr, "spearman": float(agreement)}


def mean_reciprocal_rank(queries: Any, keys: Any) -> float:
    """Of key i for query i among all keys."""
    from torch.nn.functional import normalize

    scores = normalize(queries) @ normalize(keys).T  # (n, n)
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return float((1 / ranks).mean())


def _texts(place: Place) -> tuple[list[Any], list[Any], list[Any]]:
    """Two captions of each picture, for training and for tests; scored sentence pairs."""
    folder = place.folder(SCORED)
    file = None if folder is None else folder / "sts-test.csv"
    if file is None or not file.is_file():
        raise DataError(f"give --data-dir {SCORED}=FOLDER, with sts-test.csv")
    pairs = [(one[0], one[1]) for one in captions(place)]
    return pairs[TEST_PICTURES:], pairs[:TEST_PICTURES], _scored(file)


def _scored(file: Path) -> list[tuple[str, str, float]]:
    """Sentences and their score, from the tab-separated file of the STS benchmark."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[5], row[6], float(row[4])) for row in rows]


def _made_up(count: int = 240) -> tuple[list[Any], list[Any], list[Any]]:
    """Sentences of three words that share two with their partner."""
    pairs = [(f"a{i} b{i % 12} c{i % 20}", f"d{i} b{i % 12} c{i % 20}") for i in range(count)]
    scored = [(*pair, float(i % 5)) for i, pair in enumerate(pairs[:20])]
    return pairs[40:], pairs[:40], scored


def _word_vectors(texts: list[str]) -> Any:
    """A model that averages random word vectors."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for text in texts for word in text.split()})
    known = {word: i for i, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    weights = torch.randn(len(known), 16)
    return SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu"
    )
