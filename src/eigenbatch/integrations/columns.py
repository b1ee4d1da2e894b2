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


def encoded_columns(dataset: Any) -> int | None:
    """How many columns of a data set the trainer encodes; None if it does not say."""
    names = getattr(dataset, "column_names", None)
    return len(set(names) - LABELS - {"dataset_name"}) if isinstance(names, list) else None


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
    """What a model made in one training step, as far as two columns need it."""

    def __init__(self) -> None:
        self._found: list[_Encoded] = []
        self.columns: int | None = None  # that a step encodes, if it is known

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self,
        embedding: Callable[[Any], Tensor | tuple[Tensor, Tensor]],
        inputs: Any,
        output: Any,
    ) -> None:
        """Keep the embeddings of a call, one or both; if that fails, `two_columns` will raise."""
        if len(self) >= 2 and any(one.with_gradients for one in self._found):
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

    def two_columns(self) -> list[Tensor]:
        """Embeddings of the first two columns, or of one if there are no more."""
        for one in self._found:
            if isinstance(one.rows, Exception):
                raise one.rows
        rows = [one.rows for one in self._found if isinstance(one.rows, Tensor)]
        pieces = len(list(takewhile(lambda one: not one.with_gradients, self._found)))
        if pieces < 2 or (pieces == 2 and self.columns is None):
            return joined(rows[:2], len(rows[0]))[:2] if rows else []
        if self._found[0].of_pair:
            return [torch.cat(rows[side:pieces:2]) for side in range(2)]
        total = sum(map(len, rows[:pieces]))
        if self.columns is None or total % self.columns:
            raise ShapeError(
                f"the loss encodes in pieces, {total} rows in all of {self.columns} columns: "
                "these cannot be told apart. Train on a Dataset that names its columns"
            )
        return joined(rows[:pieces], total // self.columns)[:2]

    def of_anchors(self, read: Callable[[Any], Tensor], rows: int) -> Tensor:
        """What the inputs of the first column say about its rows."""
        found = read(self._found[0].inputs)
        for one in self._found[1:]:
            if len(found) >= rows:
                break
            found = torch.cat([found, read(one.inputs)])
        return found
