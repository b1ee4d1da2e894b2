"""Runs on captions, two of each picture: a head on frozen sentence embeddings, and fine-tuning."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenbatch.errors import DataError
from eigenbatch_paper.claim import Chunk, Place, Row, Scale

if TYPE_CHECKING:
    from torch import Tensor

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
    first, second = _made_up_features() if settings["made_up"] else _features(place)  # (n, d) each
    held_out = len(first) // 4 if settings["made_up"] else TEST_PICTURES
    train, test = [(first[part], second[part]) for part in (slice(held_out, None), slice(held_out))]

    torch.manual_seed(settings["seed"])
    head = _head(first.shape[1])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    total = settings["steps_in_all"]
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total)
    begun = time.process_time()
    cache = EmbeddingCache(len(train[0]), 256, towers=2)
    every = DataLoader(IndexedDataset(TensorDataset(*train)), batch_size=1024)
    cache.fill(lambda pair: (head(pair[0]), head(pair[1])), every)
    sampler = SpectralBatchSampler(
        cache,
        settings["batch_size"],
        Auto(TAU) if settings["selector"] == "auto" else selector_named(settings["selector"]),
        coverage="epoch",
        seed=settings["seed"],
        drop_last=True,
    )
    curve: dict[str, list[float]] = {"steps": [], "times": [], "mrr": []}
    misses, step, outside = [], 0, 0.0
    while step < total:
        sampler.set_epoch(step // len(sampler))
        for ids in sampler:
            z1, z2 = (normalize(head(side[ids])) for side in train)
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
            if step % EVALUATE_EVERY == 0:
                paused = time.process_time()
                curve["steps"].append(float(step))
                curve["times"].append(paused - begun - outside)
                with torch.no_grad():
                    curve["mrr"].append(mean_reciprocal_rank(*(head(side) for side in test)))
                outside += time.process_time() - paused
            if step == total:
                break
    return [{**chunk.settings, **curve, "miss": sum(misses) / len(misses)}]


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


def _features(place: Place) -> tuple["Tensor", "Tensor"]:
    """Embeddings of two captions of every picture, computed once and kept beside the runs."""
    import torch

    file = place.runs / "captions.pt"
    if not file.is_file():
        from sentence_transformers import SentenceTransformer

        folder = place.folder(MODEL)
        if folder is None:
            raise DataError(f"give --data-dir {MODEL}=FOLDER, a saved SentenceTransformer")
        model = SentenceTransformer(str(folder), device="cpu")
        captions = picture_captions(place.folder(CAPTIONS))
        sides = [
            model.encode([one[i] for one in captions], convert_to_tensor=True) for i in range(2)
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(sides, file)
    first, second = torch.load(file, weights_only=True)
    return first, second


def _made_up_features(count: int = 800, dim: int = 32) -> tuple["Tensor", "Tensor"]:
    """Two noisy views of the same rows."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, dim, generator=generator)
    first, second = (rows + torch.randn(count, dim, generator=generator) for _ in range(2))
    return first, second


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
