"""Accuracy of embeddings while they are trained, from the labels of the training batches."""

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eigenbatch.checks import are_numbers, check_entries, check_tensor, is_integer_tensor, whole
from eigenbatch.core.contrast import no_autocast, unit_rows
from eigenbatch.errors import ParameterError, ShapeError

NEIGHBOURS, TAU = 20, 0.07  # of the kNN vote, as in the probes of the trainer
RATE = 0.1  # of the linear classifier


class OnlineProbe:
    """kNN and linear accuracy without held-out data: a batch is predicted, then learnt from.

    The kNN vote is over the last `memory` embeddings, the linear classifier makes one step of
    gradient descent per batch. Your model gets no gradient from it. The values are means over the
    last `window` batches, so they lag behind; they show a trend, not what a probe at the end would.

    Under DDP each process judges its own batches.

    Args:
        classes: number of labels.
        memory: embeddings that vote. Keep it below the samples of an epoch, or a sample meets its
            own embedding of the epoch before.
        window: batches in the mean.

    Examples:
        >>> import torch
        >>> from eigenbatch.monitor import OnlineProbe
        >>> probe = OnlineProbe(classes=4)
        >>> for _ in range(20):
        ...     labels = torch.arange(64) % 4
        ...     values = probe(torch.eye(4)[labels], labels)  # z and labels of a training step
        >>> sorted(values), values["online_knn"] > 0.9
        (['online_knn', 'online_linear'], True)
    """

    def __init__(self, classes: int, *, memory: int = 4096, window: int = 50) -> None:
        self.classes = whole(classes, "classes", least=2)
        self.memory = whole(memory, "memory", least=1)
        self.window = whole(window, "window", least=1)
        self._rows, self._labels = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self._weight = torch.empty(0)  # (classes, d + 1), the last column is the bias
        self._right: deque[tuple[float, float]] = deque(maxlen=window)

    @torch.no_grad()
    def __call__(self, z: Tensor, labels: Tensor) -> dict[str, float]:
        """Judge a batch and learn from it.

        Args:
            z: (n, d) embeddings or features of a training step.
            labels: (n,) whole numbers below `classes`.

        Returns:
            "online_knn" and "online_linear", for a logger; empty after the first batch, which there
            is nothing to predict from.
        """
        check_tensor(z, "z")
        check_tensor(labels, "labels")
        rows = unit_rows(z.detach(), "z").float().cpu()  # (n, d)
        labels = self._checked(labels, len(rows))
        inputs = torch.cat([rows * rows.shape[1] ** 0.5, torch.ones(len(rows), 1)], dim=1)
        if not len(self._rows):
            self._rows, self._weight = rows[:0], torch.zeros(self.classes, inputs.shape[1])
        elif rows.shape[1] != self._rows.shape[1]:
            raise ShapeError(f"z has {rows.shape[1]} columns, earlier ones {self._rows.shape[1]}")
        with no_autocast(rows):
            logits = inputs @ self._weight.T  # (n, classes)
            if len(self._rows):
                guesses = self._vote(rows), logits.argmax(1)
                self._right.append(tuple((one == labels).double().mean().item() for one in guesses))  # type: ignore[arg-type]
            error = logits.softmax(1) - one_hot(labels, self.classes)  # (n, classes)
            self._weight -= RATE * error.T @ inputs / len(rows)
        self._rows = torch.cat([self._rows, rows])[-self.memory :]
        self._labels = torch.cat([self._labels, labels])[-self.memory :]
        if not self._right:
            return {}
        knn, linear = (sum(values) / len(values) for values in zip(*self._right, strict=True))
        return {"online_knn": knn, "online_linear": linear}

    def state_dict(self) -> dict[str, Any]:
        """Everything it has learnt."""
        return {
            "rows": self._rows.clone(),
            "labels": self._labels.clone(),
            "weight": self._weight.clone(),
            "right": [value for pair in self._right for value in pair],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        entries = {
            "rows": lambda value: isinstance(value, Tensor),
            "labels": lambda value: is_integer_tensor(value, (None,)),
            "weight": lambda value: isinstance(value, Tensor),
            "right": lambda value: are_numbers(value) and len(value) % 2 == 0,
        }
        check_entries(state, "OnlineProbe", entries)
        if len(state["weight"]) not in (0, self.classes):
            raise ParameterError(
                f"this state is of {len(state['weight'])} classes, this probe of {self.classes}"
            )
        self._rows, self._labels = state["rows"].clone(), state["labels"].clone()
        self._weight = state["weight"].clone()
        pairs = zip(state["right"][::2], state["right"][1::2], strict=True)
        self._right = deque(pairs, maxlen=self.window)

    def _vote(self, rows: Tensor) -> Tensor:
        """(n,) the label with most weight among the nearest remembered rows."""
        count = min(NEIGHBOURS, len(self._rows))
        cosines, nearest = (rows @ self._rows.T).topk(count, dim=1)  # (n, k)
        weights = ((cosines - 1) / TAU).exp()
        votes = one_hot(self._labels[nearest], self.classes) * weights[..., None]
        return votes.sum(1).argmax(1)

    def _checked(self, labels: Tensor, count: int) -> Tensor:
        if not is_integer_tensor(labels, (count,)):
            raise ShapeError(
                f"labels must be {count} whole numbers, got {labels.dtype} of shape "
                f"{tuple(labels.shape)}"
            )
        if count and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise ParameterError(
                f"labels must lie in 0 ... {self.classes - 1}, got {int(labels.min())} ... "
                f"{int(labels.max())}"
            )
        return labels.detach().long().cpu()
