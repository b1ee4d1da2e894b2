"""Hard batches for sentence-transformers: three lines more than a plain training.

    python examples/sentence_pairs.py first.txt second.txt runs/sentences [MODEL]

Line i of the first file belongs to line i of the second. MODEL is a name or folder that
sentence-transformers can load; without one a small model of word vectors is trained from scratch.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from eigenbatch import SpectralMonitor
from eigenbatch.integrations.sentence_transformers import HardBatches  # 1
from eigenbatch.integrations.transformers import SpectralTrainerCallback


def word_vectors(texts: list[str], dim: int = 64) -> SentenceTransformer:
    words = sorted({word for text in texts for word in text.split()})
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    weights = torch.randn(len(words) + 1, dim) / dim**0.5
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)])


def main(first: str, second: str, out: str, name: str = "") -> None:
    sides = [Path(file).read_text().splitlines() for file in (first, second)]
    model = SentenceTransformer(name) if name else word_vectors(sides[0] + sides[1])
    hard = HardBatches(model)  # 2
    spectral = SpectralTrainerCallback(SpectralMonitor(1 / 20, every=5), record=out)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=f"{out}-checkpoints", num_train_epochs=4, per_device_train_batch_size=64,
            learning_rate=2e-5 if name else 1e-2, batch_sampler=hard, report_to="none",  # 3
            save_strategy="no", logging_steps=1, disable_tqdm=True, dataloader_drop_last=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": sides[0], "positive": sides[1]}),
        loss=MultipleNegativesRankingLoss(model, scale=20.0),
        callbacks=[hard, spectral],
    )  # fmt: skip
    trainer.train()
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
