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
from tokenizers import Tokenizer, models, pre_tokenizers
from toys import LeastSimilar
from transformers import TrainerCallback

from eigenbatch import EmbeddingCache, SpectralBatchSampler

pytestmark = pytest.mark.slow
SIZE, BATCH, DIM, EPOCHS = 42, 8, 16, 3


def tiny_model():
    """One trainable vector for each of the words w0, w1, ...: no download."""
    words = {f"w{i}": i for i in range(SIZE)} | {"[UNK]": SIZE}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = torch.randn(len(words), DIM, generator=torch.Generator().manual_seed(0))
    return SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu"
    )


class Noting(MultipleNegativesRankingLoss):
    """Keeps which samples every step saw: anchor i is the word with token i."""

    def __init__(self, model):
        super().__init__(model)
        self.batches = []

    def forward(self, sentence_features, labels):
        features = list(sentence_features)
        self.batches.append(features[0]["input_ids"].tolist())
        return super().forward(features, labels)


class Refresh(TrainerCallback):
    """Embeds all samples anew at the beginning of every epoch."""

    def __init__(self, cache, texts):
        self.cache, self.texts = cache, texts

    def on_epoch_begin(self, args, state, control, model, **_):
        z = model.encode(self.texts, convert_to_tensor=True, show_progress_bar=False)
        self.cache.update(torch.arange(len(self.texts)), z)


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_trainer_takes_its_batches_from_the_sampler(tmp_path, drop_last):
    model, cache = tiny_model(), EmbeddingCache(SIZE, DIM)
    texts = [f"w{i}" for i in range(SIZE)]
    samplers = []

    def batch_sampler(dataset, *, batch_size, drop_last, valid_label_columns, generator, seed):
        samplers.append(
            SpectralBatchSampler(
                cache,
                batch_size,
                LeastSimilar(),
                seed=seed,
                drop_last=drop_last,
                shard=False,
            )
        )
        return samplers[-1]

    loss = Noting(model)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            dataloader_drop_last=drop_last,
            batch_sampler=batch_sampler,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        loss=loss,
        callbacks=[Refresh(cache, texts)],
    )
    trainer.train()

    (sampler,) = samplers
    steps = len(sampler)
    assert steps == (SIZE // BATCH if drop_last else SIZE // BATCH + 1)
    assert len(loss.batches) == EPOCHS * steps
    epochs = [loss.batches[start : start + steps] for start in range(0, EPOCHS * steps, steps)]
    for epoch in epochs:
        seen = [i for batch in epoch for i in batch]
        assert len(set(seen)) == len(seen) == (SIZE - SIZE % BATCH if drop_last else SIZE)
    assert epochs[0] != epochs[1] != epochs[2]
    assert sampler.plan.known == SIZE // BATCH * BATCH
