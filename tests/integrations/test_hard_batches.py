"""HardBatches in a real SentenceTransformerTrainer."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from PIL import Image
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    StaticEmbedding,
    Transformer,
    WordEmbeddings,
)
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, TrainerCallback

from eigenbatch import Greedy, Neighbours, Random, SpectralMonitor
from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.integrations.sentence_transformers import HardBatches, _first_columns
from eigenbatch.integrations.transformers import SpectralTrainerCallback

pytestmark = pytest.mark.slow
SIZE, BATCH, DIM, GROUPS = 48, 8, 16, 6


def model():
    """Words of one group start close to each other: neighbours are known beforehand."""
    words = {f"w{i}": i for i in range(SIZE)} | {"[UNK]": SIZE}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(GROUPS, DIM, generator=generator).repeat(SIZE // GROUPS, 1)
    noise = 0.6 * torch.randn(SIZE, DIM, generator=generator)
    weights = torch.cat([centres + noise, torch.zeros(1, DIM)])
    return SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu"
    )


class Noting(MultipleNegativesRankingLoss):
    def __init__(self, trained):
        super().__init__(trained)
        self.batches, self.evaluated = [], []

    def forward(self, sentence_features, labels):
        features = list(sentence_features)
        noted = self.batches if torch.is_grad_enabled() else self.evaluated
        noted.append(features[0]["input_ids"].tolist())
        return super().forward(features, labels)


def pairs(size=SIZE):
    """Sample i is the word i, twice: the batches that a loss gets are ids."""
    texts = [f"w{i}" for i in range(size)]
    return Dataset.from_dict({"anchor": texts, "positive": texts})


def trainer(path, trained, hard, loss, *, data=None, evaluate=None, **options):
    args = SentenceTransformerTrainingArguments(
        output_dir=str(path), per_device_train_batch_size=BATCH, batch_sampler=hard, use_cpu=True,
        report_to="none", disable_tqdm=True, per_device_eval_batch_size=BATCH,
        **{
            "dataloader_drop_last": True, "learning_rate": 1e-4, "num_train_epochs": 3,
            "save_strategy": "no",
        } | options,
    )  # fmt: skip
    return SentenceTransformerTrainer(
        model=trained,
        args=args,
        train_dataset=data or pairs(),
        eval_dataset=evaluate,
        loss=loss,
        callbacks=[hard],
    )


def same_group(batches):
    pairs = [(a, b) for batch in batches for a in batch for b in batch if a < b]
    return sum(a % GROUPS == b % GROUPS for a, b in pairs) / len(pairs)


def test_batches_become_neighbourhoods_without_extra_passes(tmp_path):
    trained = model()
    passes = []
    trained.register_forward_hook(lambda module, inputs, output: passes.append(1))
    hard, loss = HardBatches(trained), Noting(trained)
    trainer(tmp_path, trained, hard, loss).train()
    steps = SIZE // BATCH
    assert len(loss.batches) == 3 * steps
    assert len(passes) == 2 * 3 * steps  # anchors and positives of every step, nothing else
    assert hard.cache.filled.all()
    first, last = loss.batches[:steps], loss.batches[2 * steps :]
    assert same_group(first) < 0.3
    assert same_group(last) > 0.6
    assert sorted(i for batch in last for i in batch) == list(range(SIZE))  # every sample once
    assert least_similarity(hard.cache, trained) > 0.9


def least_similarity(cache, trained):
    """Of a cached row to the embedding of its own word, in both towers."""
    own = torch.nn.functional.normalize(trained[0].embedding.weight.detach()[:SIZE])
    stored = [cache.get(torch.arange(SIZE), tower).float() for tower in range(2)]
    return min((rows * own).sum(1).min() for rows in stored)


def mismatched():
    """Pairs of which no two sides belong together: hard for any model."""
    texts = [f"w{i}" for i in range(SIZE)]
    return Dataset.from_dict({"anchor": texts, "positive": texts[1:] + texts[:1]})


def test_with_held_out_pairs_batches_are_hard_while_these_are_not(tmp_path, caplog):
    for held_out, hard_batches in ((pairs(), True), (mismatched(), False)):
        trained = model()
        hard, loss = HardBatches(trained, held_out=held_out), Noting(trained)
        trainer(tmp_path / str(hard_batches), trained, hard, loss).train()
        last = loss.batches[-SIZE // BATCH :]
        assert (same_group(last) > 0.6) == hard_batches
        assert hard.sampler.plan.figures["hard"] == hard_batches
    assert caplog.text.count("Auto: hard batches from here on") == 1
    assert caplog.text.count("Auto: random batches from here on") == 1


def test_samples_are_encoded_as_training_reads_them(tmp_path):
    """With the prompts of the training, and without a default prompt of the model."""
    trained = model()
    trained.prompts, trained.default_prompt_name = {"q": "w1 w2 "}, "q"
    hard = HardBatches(trained, encode_after=0)
    training = trainer(
        tmp_path, trained, hard, Noting(trained), prompts={"anchor": "w40 "}, num_train_epochs=1,
    )  # fmt: skip
    begin, encoded = hard.on_train_begin, []

    def noting(*arguments, **named):
        begin(*arguments, **named)
        encoded.extend(hard.cache.get(torch.arange(SIZE), tower) for tower in range(2))

    hard.on_train_begin = noting
    training.train()
    for tower in range(2):
        stored = hard.cache.get(torch.arange(SIZE), tower)
        torch.testing.assert_close(stored, encoded[tower], atol=5e-3, rtol=0)
    assert not torch.equal(encoded[0], encoded[1])  # anchors have a prompt, positives none


@pytest.mark.parametrize("encode_after", [None, 0])
def test_an_empty_text_is_said_once_and_training_goes_on(tmp_path, caplog, encode_after):
    texts = [f"w{i}" for i in range(SIZE)]
    data = Dataset.from_dict({"anchor": [*texts[:5], "", *texts[6:]], "positive": texts})
    trained = model()
    hard = HardBatches(trained, encode_after=encode_after)
    trainer(tmp_path, trained, hard, Noting(trained), data=data).train()
    assert (~hard.cache.filled).nonzero().flatten().tolist() == [5]
    said = [text for text in caplog.messages if "zero or not finite" in text]
    assert len(said) == (1 if encode_after is None else 2)  # in the pass, and in a step


def test_a_model_that_shortens_what_it_encodes_fills_the_cache(tmp_path):
    trained = model()
    trained.truncate_dim = 8
    hard = HardBatches(trained)
    trainer(tmp_path, trained, hard, Noting(trained), num_train_epochs=1).train()
    assert hard.cache.dim == 8
    assert hard.cache.filled.all()


EVALUATED = {
    "larger": {"data": pairs(SIZE // 2), "evaluate": {"one": pairs()}},
    "not-whole-batches": {"evaluate": {"one": pairs(BATCH + 3)}, "dataloader_drop_last": False},
    "less-than-a-batch": {"evaluate": {"one": pairs(BATCH - 3)}, "dataloader_drop_last": False},
    "as-large": {"evaluate": {"one": pairs()}},
    "two-sets": {"evaluate": {"one": pairs(), "two": pairs(BATCH)}},
}


@pytest.mark.parametrize("options", EVALUATED.values(), ids=EVALUATED)
def test_evaluation_has_random_batches_and_leaves_training_as_it_is(options, tmp_path):
    def run(path, **evaluating):
        trained = model()
        hard, loss = HardBatches(trained), Noting(trained)
        trainer(path, trained, hard, loss, **options | evaluating).train()
        return loss, hard.cache.get(torch.arange(hard.cache.size))

    plain, rows = run(tmp_path / "plain", evaluate=None)
    loss, same_rows = run(tmp_path / "evaluated", eval_strategy="steps", eval_steps=3)
    assert loss.batches == plain.batches
    assert torch.equal(same_rows, rows)
    times = len(loss.batches) // 3
    samples = [i for data in options["evaluate"].values() for i in range(len(data))]
    assert sorted(i for batch in loss.evaluated for i in batch) == sorted(samples * times)
    assert same_group(loss.evaluated) < 0.3


def test_evaluating_first_or_the_training_data_leaves_training_as_it_is(tmp_path):
    trained, data = model(), pairs()
    hard, loss = HardBatches(trained), Noting(trained)
    options = {"eval_strategy": "steps", "eval_steps": 5}
    made = trainer(tmp_path, trained, hard, loss, data=data, evaluate=data, **options)
    made.evaluate(pairs(BATCH))  # before it is known what is trained on
    made.train()
    assert same_group(loss.batches[-SIZE // BATCH :]) > 0.6
    assert least_similarity(hard.cache, trained) > 0.9


def test_a_resumed_training_begins_with_a_full_cache(tmp_path):
    trained = model()
    first = HardBatches(trained)
    options = {"save_strategy": "epoch", "ignore_data_skip": True}
    trainer(tmp_path, trained, first, Noting(trained), num_train_epochs=2, **options).train()
    again, loss = HardBatches(trained), Noting(trained)
    resumed = trainer(tmp_path, trained, again, loss, **options)
    resumed.train(resume_from_checkpoint=True)
    assert len(loss.batches) == SIZE // BATCH
    assert same_group(loss.batches) > 0.6


def test_encoded_first_the_first_epoch_is_chosen_already(tmp_path):
    trained = model()
    hard, loss = HardBatches(trained, encode_after=0), Noting(trained)
    trainer(tmp_path, trained, hard, loss, num_train_epochs=1).train()
    assert same_group(loss.batches) > 0.6
    assert sorted(i for batch in loss.batches for i in batch) == list(range(SIZE))


def test_encoded_after_a_step_the_rest_of_the_first_epoch_is_chosen(tmp_path):
    options = {"num_train_epochs": 1, "every": 1}
    random, *_ = watched(tmp_path / "random", **options)
    options["hard"] = lambda model: HardBatches(model, encode_after=1)
    batches, state, cached = watched(tmp_path / "whole", **options)
    assert batches[:2] == random[:2]  # the second one is drawn ahead
    assert same_group(batches[2:]) > 1.5 * same_group(random[2:])
    assert sorted(i for batch in batches for i in batch) == list(range(SIZE))
    for stop in (1, 2, 4):
        path = tmp_path / str(stop)
        before, *_ = watched(path, stop=stop, **options)
        after, resumed_state, resumed_cached = watched(path, resume=True, **options)
        assert before + after == batches
        assert resumed_state == state
        assert torch.equal(resumed_cached, cached)


@pytest.mark.parametrize(
    ("options", "epochs", "said"),
    [({}, 1, 1), ({}, 2, 0), ({"encode_after": 0}, 1, 0), ({"encode_after": 100}, 1, 1),
     ({"planner": Random()}, 1, 0), ({"planner": Greedy()}, 1, 1)],
)  # fmt: skip
def test_a_single_epoch_without_encoding_is_warned_about(tmp_path, caplog, options, epochs, said):
    trained = model()
    hard = HardBatches(trained, **options)
    trainer(tmp_path, trained, hard, Noting(trained), num_train_epochs=epochs).train()
    assert caplog.text.count("all batches will be random") == said


def test_an_empty_text_is_not_encoded_again_by_a_resumed_run(tmp_path):
    texts = [f"w{i}" for i in range(SIZE)]
    data = Dataset.from_dict({"anchor": [*texts[:5], "", *texts[6:]], "positive": texts})

    def ages(name, stop=None, resume=False):
        torch.manual_seed(0)
        trained = model()
        hard = HardBatches(trained, encode_after=1)
        made = trainer(tmp_path / name, trained, hard, Noting(trained), data=data,
                       save_strategy="steps", save_steps=4)  # fmt: skip
        made.add_callback(StopAt(stop))
        made.train(resume_from_checkpoint=resume)
        return hard.cache.age()

    ages("parts", stop=8)
    assert torch.equal(ages("parts", resume=True), ages("whole"))


def test_random_batches_need_no_encoding(tmp_path):
    trained = model()
    hard = HardBatches(trained, Random(), encode_after=1)
    trainer(tmp_path, trained, hard, Noting(trained), num_train_epochs=1).train()
    assert hard.cache.fills == 0


def test_when_samples_are_encoded_is_checked():
    with pytest.raises(ParameterError, match="encode_after must be at least 0, got -1"):
        HardBatches(model(), encode_after=-1)
    with pytest.raises(ParameterError, match="give it or planner="):
        HardBatches(model(), Neighbours(), held_out=pairs())


def test_all_samples_are_encoded_early_by_default_where_it_is_cheap(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("eigenbatch.integrations.carried.FILL_AFTER", 2)
    for epochs, fills in ((3, 0), (10, 1)):
        trained = model()
        hard = HardBatches(trained)
        trainer(
            tmp_path / str(epochs), trained, hard, Noting(trained), num_train_epochs=epochs
        ).train()
        assert hard.cache.fills == fills
    assert caplog.text.count("all 48 samples will be embedded once after 2 steps") == 1


@pytest.mark.parametrize("options", [{"encode_after": 0}, {"encode_after": 100}])
def test_encoding_needs_two_columns_of_texts_from_the_start(tmp_path, options):
    trained = model()
    hard = HardBatches(trained, **options)
    one = trainer(tmp_path, trained, hard, OneColumn(trained), num_train_epochs=1)
    one.train_dataset = Dataset.from_dict({"anchor": ["w1", "w2"] * BATCH})
    with pytest.raises(
        ParameterError, match="first two columns must be texts or pictures, found anchor"
    ):
        one.train()


class StopAt(TrainerCallback):
    """An interruption after a step that was saved."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


def watched(path, *, stop=None, resume=False, every=8, hard=None, **options):
    """Batches, and the states of monitor and cache at the end of a run; stopped or resumed."""
    torch.manual_seed(0)
    trained = model()
    hard = hard(trained) if hard else HardBatches(trained)
    loss = Noting(trained)
    monitor = SpectralMonitor(1 / 20, every=2, quiet=True, strict=True)
    options = {"save_strategy": "steps", "save_steps": every} | options
    made = trainer(path, trained, hard, loss, **options)
    made.add_callback(SpectralTrainerCallback(monitor))
    made.add_callback(StopAt(stop))
    made.train(resume_from_checkpoint=resume)
    known = hard.cache.filled.nonzero().flatten()
    return loss.batches, monitor.state_dict(), hard.cache.get(known)


SKIPPING = pytest.mark.parametrize("ignore", [True, False], ids=["sampler-skips", "trainer-skips"])


@SKIPPING
def test_a_run_interrupted_in_an_epoch_ends_as_the_whole_one(ignore, tmp_path):
    batches, state, cached = watched(tmp_path / "whole")
    before, *_ = watched(tmp_path / "parts", stop=8)
    after, resumed_state, resumed_cached = watched(
        tmp_path / "parts", resume=True, ignore_data_skip=ignore
    )
    assert len(batches) == 3 * SIZE // BATCH
    assert before + after == batches
    assert resumed_state == state
    assert torch.equal(resumed_cached, cached)


def test_a_run_that_encoded_first_is_resumed_without_encoding_again(tmp_path):
    options = {"hard": lambda model: HardBatches(model, encode_after=0)}
    batches, *_ = watched(tmp_path / "whole", **options)
    before, *_ = watched(tmp_path / "parts", stop=8, **options)
    after, *_ = watched(tmp_path / "parts", resume=True, **options)
    assert before + after == batches


def test_what_auto_decided_before_a_checkpoint_is_resumed(tmp_path, caplog):
    for name, held_out in {"easy": pairs(), "hard": mismatched()}.items():
        options = {"hard": lambda model, held_out=held_out: HardBatches(model, held_out=held_out)}
        batches, *_ = watched(tmp_path / name, **options)
        before, *_ = watched(tmp_path / f"{name}-parts", stop=8, **options)
        after, *_ = watched(tmp_path / f"{name}-parts", resume=True, **options)
        assert before + after == batches


@SKIPPING
def test_a_run_interrupted_twice_in_an_epoch_ends_as_the_whole_one(ignore, tmp_path):
    options = {"every": 2, "ignore_data_skip": ignore}
    batches, state, cached = watched(tmp_path / "whole", **options)
    first, *_ = watched(tmp_path / "parts", stop=8, **options)
    second, *_ = watched(tmp_path / "parts", stop=10, resume=True, **options)
    third, resumed_state, resumed_cached = watched(tmp_path / "parts", resume=True, **options)
    assert [len(part) for part in (first, second, third)] == [8, 2, 8]
    assert first + second + third == batches
    assert resumed_state == state
    assert torch.equal(resumed_cached, cached)


def test_a_run_that_accumulates_gradients_is_resumed_where_it_ended(tmp_path):
    options = {"every": 1, "gradient_accumulation_steps": 2}
    batches, _, cached = watched(tmp_path / "whole", **options)
    before, *_ = watched(tmp_path / "parts", stop=5, **options)
    after, _, resumed_cached = watched(tmp_path / "parts", resume=True, **options)
    assert (len(before), len(after)) == (10, 8)
    assert before + after == batches
    assert torch.equal(resumed_cached, cached)


def test_a_trainer_that_would_skip_other_batches_is_named(tmp_path):
    watched(tmp_path, stop=8)
    with pytest.raises(ParameterError, match=r"after 2 .* skip 4,.*ignore_data_skip=True"):
        watched(tmp_path, resume=True, gradient_accumulation_steps=2)


def test_a_checkpoint_without_a_cache_is_named_and_its_ids_stay_right(tmp_path, caplog):
    watched(tmp_path, stop=8)
    (tmp_path / "checkpoint-8" / "hard_batches.pt").unlink()
    trained = model()
    hard, loss = HardBatches(trained), Noting(trained)
    trainer(tmp_path, trained, hard, loss).train(resume_from_checkpoint=True)
    assert "hard_batches.pt" in caplog.text
    assert len(loss.batches) == 10
    assert least_similarity(hard.cache, trained) > 0.9


class OneColumn(torch.nn.Module):
    """Encodes the first text column only."""

    def __init__(self, trained):
        super().__init__()
        self.model = trained

    def forward(self, sentence_features, labels):
        return self.model(next(iter(sentence_features)))["sentence_embedding"].square().mean()


def test_a_loss_without_two_columns_is_named_once_and_training_continues(tmp_path, caplog):
    trained = model()
    hard = HardBatches(trained)
    trainer(tmp_path, trained, hard, OneColumn(trained), num_train_epochs=1).train()
    assert sum("batches stay random" in record.message for record in caplog.records) == 1
    assert "is the model of this HardBatches the one that is trained?" in caplog.text
    assert not hard.cache.filled.any()


@pytest.mark.parametrize("dims", [[8, 4], [DIM, 8]])
def test_embeddings_that_a_loss_shortens_are_not_stored(dims, tmp_path, caplog):
    trained = model()
    hard = HardBatches(trained)
    loss = MatryoshkaLoss(trained, MultipleNegativesRankingLoss(trained), dims)
    trainer(tmp_path, trained, hard, loss, num_train_epochs=1).train()
    whole = DIM in dims  # which comes first
    assert hard.cache.filled.all() == whole
    assert ("Matryoshka" in caplog.text) != whole


def test_a_loss_that_encodes_in_pieces_fills_the_cache_as_the_plain_one(tmp_path):
    def cached(kind, **options):
        words = WhitespaceTokenizer(vocab=[f"w{i}" for i in range(SIZE)], stop_words=[])
        weights = model()[0].embedding.weight.detach()[:SIZE].numpy()
        embedding = WordEmbeddings(words, weights, update_embeddings=True)
        trained = SentenceTransformer(modules=[embedding, Pooling(DIM)], device="cpu")
        hard = HardBatches(trained)
        trainer(tmp_path, trained, hard, kind(trained, **options)).train()
        return torch.cat([hard.cache.get(range(SIZE), tower) for tower in range(2)])

    plain = cached(MultipleNegativesRankingLoss)
    pieces = cached(CachedMultipleNegativesRankingLoss, mini_batch_size=3)
    assert torch.allclose(plain, pieces, atol=1e-3)


def transformer(folder):
    """A tokenised transformer: sentence-transformers encodes its later columns in one pass."""
    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(SIZE))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=DIM, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=2 * DIM, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(str(folder)), Pooling(DIM)], device="cpu")


@pytest.mark.parametrize(
    "loss",
    [
        MultipleNegativesRankingLoss,
        TripletLoss,
        lambda trained: MatryoshkaLoss(trained, MultipleNegativesRankingLoss(trained), [DIM, 8]),
        lambda trained: CachedMultipleNegativesRankingLoss(trained, mini_batch_size=3),
    ],
    ids=["plain", "triplet", "matryoshka", "cached"],
)
def test_columns_of_hard_negatives_leave_the_first_two_as_they_are(loss, tmp_path):
    trained = transformer(tmp_path / "model")
    hard, taken = HardBatches(trained), []
    monitor = SpectralMonitor(0.05, every=1, strict=True, quiet=True)
    columns = {
        name: [f"w{i} {word}" for i in range(SIZE)]
        for name, word in {"anchor": "w0", "positive": "w1", "negative": "w2 w3"}.items()
    }
    made = trainer(
        tmp_path, trained, hard, loss(trained), data=Dataset.from_dict(columns),
        num_train_epochs=1, learning_rate=0.0, logging_steps=1,
    )  # fmt: skip
    made.add_callback(SpectralTrainerCallback(monitor, sinks=[taken.append]))
    made.train()
    for tower, name in enumerate(("anchor", "positive")):
        own = trained.encode(columns[name], convert_to_tensor=True, normalize_embeddings=True)
        assert ((hard.cache.get(range(SIZE), tower).float() * own).sum(1) > 0.999).all()
    assert [one.negatives for one in taken] == [2 * BATCH - 1] * (SIZE // BATCH)
    losses = [line["loss"] for line in made.state.log_history if "loss" in line]
    if "Multiple" in type(made.loss).__name__:
        assert [one.loss for one in taken] == pytest.approx(losses, rel=1e-3)
    assert "neighbours" not in taken[0].selection


def test_a_checkpoint_holds_the_settings_and_neither_data_nor_model(tmp_path):
    """The trainer pickles its arguments, of which the batch sampler is one."""
    trained = model()
    hard = HardBatches(trained, held_out=pairs(), tau=lambda: 0.05)
    made = trainer(tmp_path, trained, hard, Noting(trained), max_steps=2, save_strategy="steps",
                   save_steps=2)  # fmt: skip
    callback = SpectralTrainerCallback(
        SpectralMonitor(lambda: 0.05, quiet=True), record=tmp_path / "run", sinks=[lambda _: None]
    )
    callback.attach(made)
    made.add_callback(callback)
    made.train()
    saved = torch.load(tmp_path / "checkpoint-2" / "training_args.bin", weights_only=False)
    assert saved.batch_sampler == ("Auto", "auto")


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentTypeError, match="model must be a SentenceTransformer"):
        HardBatches(None)
    with pytest.raises(ArgumentTypeError, match="planner must be callable"):
        HardBatches(model(), 3)
    sparse = SparseEncoder(modules=[model()[0]], device="cpu")
    with pytest.raises(
        ArgumentTypeError, match=r"must be a SentenceTransformer, got \S+SparseEncoder"
    ):
        HardBatches(sparse)


def test_a_second_training_keeps_the_cache_of_the_same_data(tmp_path):
    trained, data = model(), pairs()
    hard, loss = HardBatches(trained), Noting(trained)
    made = trainer(tmp_path, trained, hard, loss, data=data, num_train_epochs=1)
    made.train()
    loss.batches.clear()
    made.train()
    assert same_group(loss.batches) > 0.6
    other = trainer(tmp_path, trained, hard, loss, data=pairs(), num_train_epochs=1)
    with pytest.raises(ParameterError, match="one HardBatches for each data set"):
        other.train()


def test_several_training_sets_are_refused(tmp_path):
    trained = model()
    hard = HardBatches(trained)
    parts = DatasetDict({"one": pairs(), "two": pairs()})
    with pytest.raises(ParameterError, match="concatenate_datasets"):
        trainer(tmp_path, trained, hard, Noting(trained), data=parts).train()


def test_half_of_the_wiring_is_named(tmp_path, caplog):
    trained = model()
    hard = HardBatches(trained)
    only_callback = trainer(tmp_path, trained, hard, Noting(trained))
    only_callback.args.batch_sampler = "batch_sampler"
    with pytest.raises(ParameterError, match="batch_sampler=hard"):
        only_callback.train()
    only_sampler = trainer(tmp_path, trained, hard, Noting(trained), evaluate=pairs())
    only_sampler.remove_callback(hard)
    only_sampler.evaluate()
    assert "callbacks=[hard]" not in caplog.text
    only_sampler.train()
    assert caplog.text.count("callbacks=[hard]") == 1


def test_columns_of_scores_are_said_once(tmp_path, caplog):
    trained = model()
    data = pairs().add_column("score", [1.0] * SIZE)
    HardBatches(trained, held_out=data)
    assert "the data has a column 'score': its pairs are taken as positives" in caplog.text


def test_the_first_two_columns_are_cached_whatever_their_type():
    pictures = [Image.new("RGB", (8, 8))] * 4
    columns = {"image": pictures, "caption": list("abcd"), "negative": list("efgh")}
    assert _first_columns(Dataset.from_dict(columns)) == ["image", "caption"]
    lists = {"anchor": list("abcd"), "negatives": [["a", "b"]] * 4, "positive": list("abcd")}
    assert _first_columns(Dataset.from_dict(lists)) == ["anchor"]
