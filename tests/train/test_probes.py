import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from clouds import cloud
from eigenbatch import spectrum
from eigenbatch.train.data.sets.digits import DigitsConfig
from eigenbatch.train.probes import (
    Features,
    extract,
    few_labels,
    knn_accuracy,
    linear_probe,
    linear_probe_sgd,
    rankme,
)

digits = DigitsConfig().load


def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(name="pixels", scope="module")
def _pixels():
    sets = digits("train"), digits("test")
    return tuple(Features(s.images.flatten(1).float() / 255, s.labels) for s in sets)


def test_knn_agrees_with_scikit_learn(pixels):
    train, test = pixels
    rows = [torch.nn.functional.normalize(f.rows).numpy() for f in pixels]
    sklearn = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / 0.07)
    ).fit(rows[0], train.labels)
    expected = sklearn.score(rows[1], test.labels)
    assert knn_accuracy(train, test) == pytest.approx(expected, abs=1e-6)


def test_the_fast_probe_agrees_with_scikit_learn(pixels):
    train, test = pixels
    mean, std = train.rows.mean(0), train.rows.std(0).clamp(min=1e-6)
    x, y = (((f.rows - mean) / std).numpy() for f in pixels)
    strength = 1 / (2 * 1e-3 * len(x))
    reference = LogisticRegression(C=strength, max_iter=2000).fit(x, train.labels)
    assert linear_probe(train, test) == pytest.approx(reference.score(y, test.labels), abs=0.006)


def test_the_papers_probe_learns_and_is_repeatable(pixels):
    train, test = pixels
    first = linear_probe_sgd(train, test, epochs=20, generator=generator())
    assert first > 0.85
    assert first == linear_probe_sgd(train, test, epochs=20, generator=generator())


def test_few_labels_takes_as_many_of_each_class_and_makes_the_probe_harder(pixels):
    train, test = pixels
    few = few_labels(train, 2, generator=generator())
    assert torch.bincount(few.labels).tolist() == [2] * 10
    assert linear_probe(few, test) < linear_probe(train, test) - 0.1
    assert len(few_labels(train, 1000, generator=generator()).rows) == len(train.rows)


def test_features_come_from_evaluation_mode_and_the_encoder_is_left_as_it_was():
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5))
    before = encoder[1].running_mean.clone()
    features = extract(encoder, digits("test"), lambda x: x.float() / 255, batch_size=100)
    assert features.rows.shape == (360, 64)
    assert torch.equal(features.labels, digits("test").labels)
    assert encoder.training
    assert torch.equal(encoder[1].running_mean, before)


def test_rankme_is_the_entropy_rank_of_unnormalised_features():
    rows = cloud("anisotropic", 50, 6) * torch.rand(50, 1, generator=generator()) * 9
    expected = spectrum(rows, normalize=False).entropy_rank
    assert rankme(Features(rows, torch.zeros(50))) == expected != spectrum(rows).entropy_rank
