"""How good frozen features are: kNN, linear probes, few labels, RankMe.

Letters: n training rows, m test rows, f features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot
from torch.utils.data import DataLoader, Dataset

from eigenbatch.core.spectrum import spectrum
from eigenbatch.train.data.images import Sample


@dataclass(frozen=True, slots=True)
class Features:
    """Encoder outputs of a labelled set."""

    rows: Tensor  # (n, f)
    labels: Tensor  # (n,)


@torch.no_grad()
def extract(
    encoder: nn.Module,
    data: Dataset[Sample],
    undistorted: Callable[[Tensor], Tensor],
    *,
    batch_size: int = 512,
    workers: int = 0,
) -> Features:
    """Features of every image without augmentation, in evaluation mode; on the CPU."""
    labels: list[Tensor] = []
    rows = embed(encoder, data, undistorted, batch_size=batch_size, workers=workers, labels=labels)
    return Features(rows, torch.cat(labels))


@torch.no_grad()
def embed(
    encoder: nn.Module,
    data: Dataset[Any],
    undistorted: Callable[[Tensor], Tensor],
    *,
    batch_size: int = 512,
    workers: int = 0,
    most: int | None = None,
    labels: list[Tensor] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """(n, f) features of samples `(image, ...)`, in evaluation mode; on the CPU.

    Args:
        encoder: left in the mode it was in.
        data: samples whose first element is a uint8 image.
        undistorted: from images to what the encoder takes.
        batch_size: images at once.
        workers: processes that read samples.
        most: stop after about so many samples; None: all.
        labels: the second element of the samples is appended here.
        progress: called with the number of samples done.
    """
    device = next(encoder.parameters()).device
    training = encoder.training
    encoder.eval()
    rows: list[Tensor] = []
    done = 0
    for images, *targets in DataLoader(data, batch_size=batch_size, num_workers=workers):
        rows.append(encoder(undistorted(images.to(device))).float().cpu())
        if labels is not None:
            labels.append(targets[0])
        done += len(images)
        progress(done)
        if most is not None and done >= most:
            break
    encoder.train(training)
    return torch.cat(rows)


def knn_accuracy(train: Features, test: Features, *, k: int = 20, tau: float = 0.07) -> float:
    """Accuracy of a vote of the k nearest by cosine, weighted exp(cosine / tau)."""
    classes = int(train.labels.max()) + 1
    bank, queries = normalize(train.rows), normalize(test.rows)
    k = min(k, len(bank))
    right = 0
    for start in range(0, len(queries), 1024):
        cosines, nearest = (queries[start : start + 1024] @ bank.T).topk(k, 1)  # (b, k)
        votes = one_hot(train.labels[nearest], classes) * (cosines / tau).exp()[..., None]
        right += int((votes.sum(1).argmax(1) == test.labels[start : start + 1024]).sum())
    return right / len(queries)


def few_labels(train: Features, per_class: int, *, generator: torch.Generator) -> Features:
    """`per_class` random rows of each class, or all of a smaller one.

    A probe on them is not saturated by easy data.
    """
    chosen = []
    for label in torch.unique(train.labels):
        rows = (train.labels == label).nonzero()[:, 0]
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:per_class]])
    index = torch.cat(chosen)
    return Features(train.rows[index], train.labels[index])


def linear_probe(train: Features, test: Features, *, penalty: float = 1e-3) -> float:
    """Accuracy of multinomial logistic regression on standardised features, by L-BFGS."""
    mean, std = train.rows.mean(0), train.rows.std(0).clamp(min=1e-6)
    x, y = ((f.rows - mean) / std for f in (train, test))
    classes = int(train.labels.max()) + 1
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(x @ weight.T + bias, train.labels) + penalty * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return _accuracy(y @ weight.T + bias, test.labels)


def linear_probe_sgd(
    train: Features,
    test: Features,
    *,
    epochs: int = 90,
    lr: float = 0.03,
    batch_size: int = 256,
    generator: torch.Generator,
) -> float:
    """The paper's protocol: SGD with momentum on frozen features, 90 epochs at 0.03."""
    classes = int(train.labels.max()) + 1
    probe = nn.Linear(train.rows.shape[1], classes)
    nn.init.zeros_(probe.weight)
    nn.init.zeros_(probe.bias)
    optimizer = torch.optim.SGD(probe.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(train.rows), generator=generator), batch_size):
            optimizer.zero_grad()
            cross_entropy(probe(train.rows[batch]), train.labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        return _accuracy(probe(test.rows), test.labels)


def rankme(features: Features) -> float:
    """Entropy rank of the features as they are: not normalised, not centred.

    From eigenvalues of the second moment, as the paper has it. RankMe as published (Garrido et al.)
    takes singular values, which gives larger numbers.
    """
    return spectrum(features.rows, normalize=False).entropy_rank


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).float().mean().item()
