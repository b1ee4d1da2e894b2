"""Sentence pairs: two line-aligned text files, words as ids, retrieval as evaluation."""

import gzip
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from eigenbatch.errors import DataError
from eigenbatch.train.batch import Batch
from eigenbatch.train.data.sets.pairs import PairsConfig
from eigenbatch.train.data.source import Source
from eigenbatch.train.encoders import Inputs
from eigenbatch.train.encoders.text import PADDING
from eigenbatch.train.methods.method import Method

UNKNOWN = 1
LONGEST = 48
"""Words of a sentence that are kept."""

HELD_OUT = 512
"""Pairs held out for `Auto` by default, at most a twentieth of all."""

TEST_EACH = 10
"""One pair in so many is kept for the test, if there are no test files."""

WORD = re.compile(r"\w+|[^\w\s]")


class Vocabulary:
    """The most frequent words of a text; 0 is padding, 1 any other word."""

    def __init__(self, sentences: list[str], size: int) -> None:
        counts = Counter(word for sentence in sentences for word in words(sentence))
        kept = [word for word, _ in counts.most_common(max(0, size - 2))]
        self.ids = {word: number for number, word in enumerate(kept, start=2)}

    def __len__(self) -> int:
        return len(self.ids) + 2

    def encode(self, sentences: list[str]) -> Tensor:
        """(n, length) word ids, padded with 0."""
        rows = [[self.ids.get(word, UNKNOWN) for word in words(s)[:LONGEST]] for s in sentences]
        length = max((len(row) for row in rows), default=1) or 1
        table = torch.full((len(rows), length), PADDING, dtype=torch.int32)
        for i, row in enumerate(rows):
            table[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
        return table


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Encoded sentences and their partners."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second  # (n, length) each

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.first[index], self.second[index]


class BothSides(nn.Module):
    """Collated pairs -> a batch without labels; nothing is augmented."""

    def forward(self, sample: tuple[Tensor, Tensor]) -> Batch:
        """Word ids of both sides on the device."""
        first, second = sample
        return Batch(first, second)


class PairSource(Source):
    """Sentence pairs for two towers, evaluated by retrieval among all test pairs."""

    def __init__(self, config: PairsConfig) -> None:
        assert config.first is not None
        assert config.second is not None
        first, second = aligned(config.first, config.second)
        if config.test_first is not None and config.test_second is not None:
            test = aligned(config.test_first, config.test_second)
        else:
            if len(first) < TEST_EACH:
                raise DataError(
                    f"{config.first} has {len(first)} pairs: at least {TEST_EACH} are needed to "
                    "keep some for the test, or give data.test_first and data.test_second"
                )
            kept_back = slice(TEST_EACH - 1, None, TEST_EACH)
            test = (first[kept_back], second[kept_back])
            for side in (first, second):
                del side[kept_back]
        first, second = first[: config.train_size], second[: config.train_size]
        held_out = config.held_out
        if held_out is None:
            held_out = min(HELD_OUT, len(first) // 20)
        kept = len(first) - held_out
        if kept < 1:
            raise DataError(
                f"data.held_out={held_out} leaves none of {len(first)} pairs to train on"
            )
        unseen = first[kept:], second[kept:]
        first, second = first[:kept], second[:kept]
        self.vocabularies = tuple(Vocabulary(side, config.vocabulary) for side in (first, second))
        training = self._encoded(first, second)
        self.train: Dataset[Any] = training
        self._sides = training.first, training.second
        self.test = self._encoded(*test)
        self.unseen = self._encoded(*unseen) if held_out > 1 else None
        self.views = BothSides()

    def inputs(self, tower: int) -> Inputs:
        """Words of that side's vocabulary."""
        return Inputs(vocabulary=len(self.vocabularies[tower]))

    def evaluate(self, method: Method, *, final: bool) -> dict[str, float]:
        """Mean reciprocal rank and recall at 1 of second -> first among all test pairs."""
        keys, queries = _embedded(method, self.test)
        ranks = retrieval_ranks(queries, keys)
        return {
            "mrr": (1 / ranks).mean().item(),
            "recall_at_1": (ranks == 1).double().mean().item(),
        }

    def pairs(
        self, method: Method, *, held_out: bool
    ) -> Callable[[], tuple[Tensor, Tensor]] | None:
        """Embeds the pairs that were held out, or as many that are trained on."""
        if self.unseen is None:
            return None
        some = self.unseen
        if not held_out:
            step = max(1, len(self.train) // len(some))  # type: ignore[arg-type]
            some = Pairs(*(side[::step][: len(some)] for side in self._sides))
        return partial(_embedded, method, some)

    def _encoded(self, first: list[str], second: list[str]) -> Pairs:
        return Pairs(self.vocabularies[0].encode(first), self.vocabularies[1].encode(second))


@torch.no_grad()
def _embedded(method: Method, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Embeddings of both sides, of the method in evaluation mode."""
    device = next(method.parameters()).device
    training = method.training
    method.eval()
    embed: Any = method.embed
    first, second = (
        torch.cat([embed(part.to(device), side) for part in torch.split(sentences, 1024)])
        for side, sentences in enumerate((pairs.first, pairs.second))
    )
    method.train(training)
    return first, second


def retrieval_ranks(queries: Tensor, keys: Tensor) -> Tensor:
    """(n,) rank of key i for query i among all keys, 1 is best; ties count half."""
    ranks = []
    for start in range(0, len(queries), 1024):
        scores = queries[start : start + 1024] @ keys.T  # (b, n)
        own = scores.diagonal(start)[:, None]  # (b, 1)
        better = (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
        ranks.append(1 + better.cpu().double())  # not every device has float64
    return torch.cat(ranks)


def words(sentence: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return WORD.findall(sentence.lower())


def aligned(first: Path, second: Path) -> tuple[list[str], list[str]]:
    """The lines of both files; raises unless they have as many."""
    sides = lines_of(first), lines_of(second)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{first} has {len(sides[0])} lines and {second} {len(sides[1])}: line i of one file "
            "must belong to line i of the other"
        )
    if len(sides[0]) < 2:
        raise DataError(f"{first} has {len(sides[0])} lines: at least 2 pairs are needed")
    return sides


def lines_of(path: Path) -> list[str]:
    """The lines of a text file, .gz or plain, as UTF-8, with or without a byte order mark.

    They end with a line feed only: `str.splitlines` would also split at separators that stand
    within sentences, such as U+2028, and pair every later line with a wrong one.
    """
    if not path.is_file():
        raise DataError(f"{path} is no text file: check the path")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as reason:
        raise DataError(f"{path} cannot be read as UTF-8 text: {reason}") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
