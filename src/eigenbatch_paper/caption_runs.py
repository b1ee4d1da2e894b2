"""Runs on captions of pictures: a head on frozen sentence embeddings."""

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from eigenbatch.errors import DataError
from eigenbatch_paper.claim import Chunk, Place, Row, Scale

if TYPE_CHECKING:
    from torch import Generator, Tensor

CAPTIONS, MODEL = "flickr8k", "minilm"
TEST_PICTURES = 2092
TAU = 0.05
EVALUATE_EVERY = 25


def needs(scale: Scale) -> frozenset[str]:
    """Scale smoke makes up its captions and features."""
    return frozenset() if scale == "smoke" else frozenset({CAPTIONS, MODEL})


def head_chunk(scale: Scale, seed: int, selector: str) -> Chunk:
    """One head trained on frozen features."""
    settings = {
        "selector": selector, "batch_size": 64, "steps_in_all": 40 if scale == "smoke" else 500,
        "made_up": scale == "smoke", "seed": seed,
    }  # fmt: skip
    return Chunk(f"captions-{selector}-seed-{seed}", settings)


def compute_head(chunk: Chunk, place: Place) -> list[Row]:
    """Train a head with two layers and a skip connection; one row with the curve of retrieval."""
    import torch
    from torch.nn.functional import cross_entropy, normalize
    from torch.utils.data import DataLoader, TensorDataset

    from eigenbatch import Auto, EmbeddingCache, IndexedDataset, SpectralBatchSampler
    from eigenbatch.selectors import selector_named

    settings: Mapping[str, Any] = chunk.settings
    features = _made_up_features() if settings["made_up"] else _features(place)  # (p, c, d)
    held_out = len(features) // 4 if settings["made_up"] else TEST_PICTURES
    test, train = features[:held_out], features[held_out:]

    torch.manual_seed(settings["seed"])
    draw = torch.Generator().manual_seed(settings["seed"])
    head = _head(features.shape[2])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    total = settings["steps_in_all"]
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total)
    begun = time.process_time()
    cache = EmbeddingCache(len(train), 256, towers=2)
    every = DataLoader(IndexedDataset(TensorDataset(train)), batch_size=1024)
    cache.fill(lambda batch: (head(batch[0][:, 0]), head(batch[0][:, 1])), every)
    sampler = SpectralBatchSampler(
        cache,
        settings["batch_size"],
        Auto(TAU) if settings["selector"] == "auto" else selector_named(settings["selector"]),
        coverage="epoch",
        seed=settings["seed"],
        drop_last=True,
    )
    curve: dict[str, list[float]] = {"steps": [], "times": [], "mrr": []}
    misses, solved, step, outside = [], [], 0, 0.0
    while step < total:
        sampler.set_epoch(step // len(sampler))
        for ids in sampler:
            z1, z2 = (normalize(head(side)) for side in _two_of(train[ids], draw))
            logits = z1 @ z2.T / TAU  # (n, n)
            target = torch.arange(len(ids))
            loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            cache.update(torch.tensor(ids), z1.detach(), z2.detach())
            step += 1
            if step > total // 2:
                misses.append(float(1 - logits.detach().softmax(1).diagonal().mean()))
                solved.append(float((logits.argmax(1) == target).double().mean()))
            if step % EVALUATE_EVERY == 0:
                paused = time.process_time()
                curve["steps"].append(float(step))
                curve["times"].append(paused - begun - outside)
                with torch.no_grad():
                    curve["mrr"].append(mean_reciprocal_rank(head(test[:, 0]), head(test[:, 1])))
                outside += time.process_time() - paused
            if step == total:
                break
    return [{**chunk.settings, **curve, "miss": fmean(misses), "solved": fmean(solved)}]


def _two_of(captions: "Tensor", generator: "Generator") -> tuple["Tensor", "Tensor"]:
    """Two different captions of every picture, (n, d) each from (n, c, d)."""
    import torch

    order = torch.rand(captions.shape[:2], generator=generator).argsort(1)  # (n, c)
    rows = torch.arange(len(captions))
    return captions[rows, order[:, 0]], captions[rows, order[:, 1]]


def mean_reciprocal_rank(queries: "Tensor", keys: "Tensor") -> float:
    """Of key i for query i among all keys."""
    from torch.nn.functional import normalize

    scores = normalize(queries) @ normalize(keys).T  # (n, n)
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return float((1 / ranks).mean())


def picture_captions(folder: Path | None) -> list[list[str]]:
    """The captions of every picture in Flickr8k.token.txt, pictures in a fixed random order."""
    file = None if folder is None else folder / "Flickr8k.token.txt"
    if file is None or not file.is_file():
        raise DataError(f"give --data-dir {CAPTIONS}=FOLDER, with Flickr8k.token.txt")
    pictures: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, _, caption = line.replace("\t", " ", 1).partition(" ")
        pictures.setdefault(name.partition("#")[0], []).append(caption.strip())
    captions = [found for _, found in sorted(pictures.items()) if len(found) >= 2]
    random.Random(0).shuffle(captions)
    return captions


def _features(place: Place) -> "Tensor":
    """(p, c, d) embeddings of all captions, computed once and kept beside the runs."""
    import torch

    file = place.runs / "captions.pt"
    if not file.is_file():
        from sentence_transformers import SentenceTransformer

        folder = place.folder(MODEL)
        if folder is None:
            raise DataError(f"give --data-dir {MODEL}=FOLDER, a saved SentenceTransformer")
        model = SentenceTransformer(str(folder), device="cpu")
        captions = picture_captions(place.folder(CAPTIONS))
        each = min(map(len, captions))
        texts = [text for one in captions for text in one[:each]]
        rows = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")  # another process may do the same
        torch.save(rows.view(len(captions), each, -1), draft)
        draft.replace(file)
    features: Tensor = torch.load(file, weights_only=True)
    return features


def _made_up_features(count: int = 800, dim: int = 32) -> "Tensor":
    """Three noisy views of the same rows."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 1, dim, generator=generator)
    return rows + torch.randn(count, 3, dim, generator=generator)


def _head(dim: int) -> Any:
    from torch import nn

    class Head(nn.Module):
        """A linear map plus two layers."""

        def __init__(self) -> None:
            super().__init__()
            self.skip = nn.Linear(dim, 256)
            self.layers = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 256))

        def forward(self, features: "Tensor") -> "Tensor":
            """(n, 256)."""
            out: Tensor = self.skip(features) + self.layers(features)
            return out

    return Head()
