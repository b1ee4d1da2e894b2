"""Text columns from the embeddings that a model makes in one training step.

Losses of the Cached... family (GradCache) encode all columns twice: first without gradients, one
piece of a column after the other, then with gradients. Other losses encode a column at once, or the
first and then all others together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from eigenbatch.errors import ParameterError, ShapeError

LABELS = {"label", "labels", "score", "scores"}
"""Columns that sentence-transformers takes for labels."""


def joined(pieces: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Consecutive pieces as columns of `rows` rows; what is left over is the last one.

    A longer piece is several columns: sentence-transformers 6 encodes all but the first at once.
    """
    columns: list[Tensor] = []
    begun: list[Tensor] = []
    for piece in (part for whole in pieces for part in torch.split(whole, max(rows, 1))):
        begun.append(piece)
        if sum(map(len, begun)) >= rows:
            columns.append(torch.cat(begun))
            begun = []
    return [*columns, torch.cat(begun)] if begun else columns


def encoded_names(names: Sequence[str]) -> list[str]:
    """The columns that sentence-transformers encodes."""
    return [name for name in names if name not in LABELS | {"dataset_name"}]


def encoded_columns(dataset: Any) -> int | None:
    """How many columns of a data set the trainer encodes; None if it does not say.

    A DatasetDict becomes several data sets in one: it says so if all have as many.
    """
    counts = set(map(encoded_columns, getattr(dataset, "datasets", None) or ()))
    if len(counts) == 1:
        return counts.pop()
    names = getattr(dataset, "column_names", None)
    return len(encoded_names(names)) if isinstance(names, list) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Encoded:
    rows: Tensor | Exception  # why there are none
    inputs: Any
    with_gradients: bool
    of_pair: bool = False  # the call made both columns


def check_not_split(args: Any) -> None:
    """Raise if the Trainer splits every batch over the GPUs of this process."""
    count = getattr(args, "n_gpu", 0)
    if count > 1:
        raise ParameterError(
            f"the Trainer splits each batch over {count} GPUs in one process (nn.DataParallel), so "
            f"that embeddings come in pieces: start it with torchrun --nproc_per_node={count}, or "
            "show it one GPU (CUDA_VISIBLE_DEVICES=0)"
        )


class Captured:
    """What a model made in one training step, of the first two columns or of all that are known."""

    def __init__(self) -> None:
        self._found: list[_Encoded] = []
        self.texts = False  # whether the model encodes columns of texts, several in one call
        self.columns: int | None = None  # that a step encodes, if it is known
        self.batch: int | None = None  # rows of a column, in all but the last batch of an epoch

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self,
        embedding: Callable[[Any], Tensor | tuple[Tensor, Tensor]],
        inputs: Any,
        output: Any,
    ) -> None:
        """Keep the embeddings of a call, one or both; if that fails, `all_columns` will raise."""
        enough = len(self) >= 2 and self._count >= self._wanted
        if enough and any(one.with_gradients for one in self._found):
            return
        found: list[Tensor | Exception]
        try:
            made = embedding(output)
            found = [one.detach() for one in (made if isinstance(made, tuple | list) else (made,))]
        except Exception as reason:
            found = [reason]
        with_gradients = torch.is_grad_enabled()
        pair = len(found) > 1
        self._found += [
            _Encoded(rows=rows, inputs=inputs, with_gradients=with_gradients, of_pair=pair)
            for rows in found
        ]

    def clear(self) -> None:
        """Forget the step."""
        self._found.clear()

    @property
    def has_more(self) -> bool:
        """Whether a column after the second was encoded: hard negatives."""
        return self._wanted > 2 and self._count > 2

    @property
    def _wanted(self) -> int:
        """Columns to keep: all that are known to be texts, else two."""
        return self.columns if self.texts and self.columns else 2

    @property
    def _rows(self) -> list[Tensor]:
        return [one.rows for one in self._found if isinstance(one.rows, Tensor)]

    @property
    def _count(self) -> float:
        """How many columns there are, if the first call made a whole one."""
        rows = self._rows
        return sum(map(len, rows)) / max(1, len(rows[0])) if rows else 0

    def two_columns(self) -> list[Tensor]:
        """Embeddings of the first two columns, or of one if there are no more."""
        return self.all_columns()[:2]

    def all_columns(self) -> list[Tensor]:
        """Embeddings of as many columns as are known to be encoded; else of the first two."""
        for one in self._found:
            if isinstance(one.rows, Exception):
                raise one.rows
        rows = self._rows
        pieces = len(list(takewhile(lambda one: not one.with_gradients, self._found)))
        if pieces < 2 or (pieces == 2 and self.columns is None):
            return joined(rows, len(rows[0]))[: self._wanted] if self.texts and rows else rows[:2]
        if self._found[0].of_pair:
            return [torch.cat(rows[side:pieces:2]) for side in range(2)]
        total = sum(map(len, rows[:pieces]))
        if self.columns is not None and total % self.columns == 0:
            return joined(rows[:pieces], total // self.columns)
        if self.columns is None and self.batch is not None and total % self.batch == 0:
            return joined(rows[:pieces], self.batch)
        raise ShapeError(
            f"the loss encodes in pieces, {total} rows in all of {self.columns} columns: these "
            "cannot be told apart. Train on a Dataset that names its columns"
        )

    def of_anchors(self, read: Callable[[Any], Tensor], rows: int) -> Tensor:
        """What the inputs of the first column say about its rows."""
        try:
            found = read(self._found[0].inputs)
        except (KeyError, IndexError, TypeError) as reason:
            inputs = self._found[0].inputs
            names = (
                ", ".join(map(str, inputs)) if isinstance(inputs, dict) else type(inputs).__name__
            )
            raise ParameterError(
                f"ids= or labels= cannot read the inputs of the model ({names}): {reason!r}. The "
                "Trainer drops columns that forward() does not name, unless "
                "remove_unused_columns=False or label_names=[...] is set"
            ) from reason
        for one in self._found[1:]:
            if len(found) >= rows:
                break
            found = torch.cat([found, read(one.inputs)])
        return found
