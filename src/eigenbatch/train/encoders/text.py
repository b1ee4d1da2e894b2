"""A small encoder for sentences: mean of word embeddings, then a residual MLP."""

import torch
from torch import Tensor, nn

PADDING = 0


class WordBag(nn.Module):
    """Sentences as padded word ids (b, length) -> (b, width).

    Word 0 is padding and counts for nothing. Word vectors start with a length of about 1: with
    torch's entries of N(0, 1) a rare word would stay where it began.
    """

    def __init__(self, vocabulary: int, width: int = 128) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, width, mode="mean", padding_idx=PADDING)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.features = width

    def forward(self, ids: Tensor) -> Tensor:
        """Mean of the word vectors, plus what the MLP makes of it."""
        mean: Tensor = self.words(ids)
        mixed: Tensor = self.mix(mean)
        return torch.add(mean, mixed)
