import math
from dataclasses import FrozenInstanceError
from xml.etree import ElementTree

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from batches import TAU, healthy_views, samples
from eigenbatch.core.bands import Method, gradient_band, subgaussian_radius
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import BLOCK_ELEMENTS, infonce
from eigenbatch.core.spectrum import spectrum
from eigenbatch.errors import ShapeError
from eigenbatch.monitor.measure import read_batch
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.reading import Reading
from layouts import LAYOUTS, contrast


@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax_numbers_are_those_of_infonce(layout: str) -> None:
    batch = contrast(layout, "anisotropic", 24, 8)
    values = infonce(batch, TAU)
    softmax = read_batch(batch, TAU)
    assert softmax.loss == pytest.approx(values.loss.mean().item())
    assert softmax.miss == pytest.approx(values.miss.mean().item())
    assert softmax.alignment == pytest.approx(values.alignment.mean().item())
    expected = values.effective_negatives.mean().item()
    assert softmax.effective_negatives == pytest.approx(expected)
    assert softmax.chance_loss == pytest.approx(math.log(batch.negative_count + 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_is_force_times_geometry(layout: str) -> None:
    batch = contrast(layout, "clustered", 24, 8)
    reading = read_batch(batch, TAU)
    truth = infonce(batch, TAU).squared_gradient.mean().item()
    assert reading.gradient == pytest.approx(truth)
    assert reading.gradient_force * reading.gradient_geometry == pytest.approx(truth)
    assert 0 <= reading.gradient_geometry <= 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_lies_inside_both_bands(layout: str) -> None:
    reading = read_batch(contrast(layout, "random", 24, 8), TAU)
    assert reading.certified_lower <= reading.gradient <= reading.certified_upper
    assert reading.paper_lower <= reading.gradient <= reading.paper_upper
    assert (reading.band.lower, reading.band.upper) == (
        reading.certified_lower, reading.certified_upper,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["theorem", "proxy", "queue"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chosen_method_is_that_of_gradient_band(layout: str, method: Method) -> None:
    batch = contrast(layout, "anisotropic", 24, 8)
    reading = read_batch(batch, TAU, method=method)
    expected = gradient_band(batch, TAU, method=method).mean
    assert (reading.band.lower, reading.band.upper) == (reading.paper_lower, reading.paper_upper)
    assert reading.band.lower == pytest.approx(expected.lower)
    assert reading.band.upper == pytest.approx(expected.upper)


def test_without_a_choice_the_papers_band_is_its_proxy() -> None:
    batch = contrast("paired", "anisotropic", 24, 8)
    expected = gradient_band(batch, TAU, method="proxy").mean
    assert read_batch(batch, TAU).paper_upper == pytest.approx(expected.upper)


def test_a_large_queue_is_seen_through_a_sample_and_its_concentration_term() -> None:
    query, key = healthy_views()
    queue = samples(pairs=6000, seed=3)
    reading = read_batch(Contrast.queued(query, key, queue), TAU)
    assert reading.queue_length is not None
    assert reading.queue_sampled == reading.count == 4096
    truth = spectrum(queue).top
    radius = subgaussian_radius(4096, 1 / reading.queue_sigma)
    assert reading.queue_radius == pytest.approx(radius)
    assert reading.queue_sigma == pytest.approx(truth, rel=0.1)
    assert truth <= reading.queue_sigma_ceiling == pytest.approx(reading.queue_sigma + radius)
    assert reading.queue_fill is None


def test_sampling_a_queue_leaves_the_global_generator_alone() -> None:
    query, key = healthy_views()
    batch = Contrast.queued(query, key, samples(pairs=5000, seed=3))
    before = torch.get_rng_state()
    first, second = read_batch(batch, TAU), read_batch(batch, TAU)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.scalars() == second.scalars()


def test_ids_count_empty_slots_and_own_samples() -> None:
    query, key = healthy_views(pairs=4)
    batch = Contrast.queued(query, key, samples(pairs=5))
    ids = torch.tensor([7, 8, 9, 10])
    reading = read_batch(batch, TAU, ids=ids, queue_ids=torch.tensor([7, -1, 9, 30, 9]))
    assert reading.queue_length is not None
    assert reading.queue_fill == pytest.approx(4 / 5)
    assert reading.self_negative_rate == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("ids", "queue_ids", "message"),
    [
        (torch.arange(3), None, "ids must hold 4 sample ids"),
        (None, torch.arange(4), "queue_ids must hold 5 sample ids"),
    ],
)
def test_ids_of_the_wrong_length_are_refused(ids, queue_ids, message: str) -> None:
    query, key = healthy_views(pairs=4)
    batch = Contrast.queued(query, key, samples(pairs=5))
    with pytest.raises(ShapeError, match=message):
        read_batch(batch, TAU, ids=ids, queue_ids=queue_ids)


def test_queue_ids_without_a_queue_are_refused() -> None:
    with pytest.raises(ShapeError, match="belong to a queue"):
        read_batch(Contrast.paired(*healthy_views()), TAU, queue_ids=torch.arange(128))


@pytest.mark.parametrize("make", [Contrast.paired, Contrast.cross])
def test_ids_count_samples_that_are_in_the_batch_twice(make) -> None:
    ids = torch.tensor([4, 5, 4, 6, 7, 4, 8, 9])
    reading = read_batch(make(*healthy_views(pairs=8)), TAU, ids=ids)
    assert reading.repeated_id_share == pytest.approx(3 / 8)


def healthy_reading() -> Reading:
    return read_batch(Contrast.paired(*healthy_views()), TAU)


def test_scalars_are_finite_floats_under_one_prefix() -> None:
    scalars = healthy_reading().scalars()
    assert all(name.startswith("spectral/") for name in scalars)
    assert all(type(value) is float and math.isfinite(value) for value in scalars.values())
    assert len(scalars) > 30


def test_orthogonal_rows_leave_out_the_rank_they_cannot_estimate() -> None:
    batch = Contrast.cross(torch.eye(4), torch.eye(4))
    assert "spectral/participation_ratio_unbiased" not in read_batch(batch, TAU).scalars()


def test_ranks_come_with_their_attainable_maximum() -> None:
    scalars = healthy_reading().scalars()
    most = scalars["spectral/attainable_rank"]
    assert most == 64
    for name in ("participation_ratio", "entropy_rank", "stable_rank"):
        assert 1 <= scalars[f"spectral/{name}"] <= most


class LargestTensor(TorchDispatchMode):
    """Remembers the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("method", ["certified", "theorem"])
def test_a_large_batch_never_needs_its_similarity_matrix(method: Method) -> None:
    batch = Contrast.paired(*healthy_views(pairs=2048, d=8))
    with LargestTensor() as largest:
        read_batch(batch, TAU, method=method)
    assert largest.elements <= BLOCK_ELEMENTS < len(batch.anchors) ** 2


@pytest.mark.parametrize("method", ["certified", "theorem", "proxy"])
def test_a_small_batch_of_long_rows_never_needs_a_square_of_their_dimension(method: Method) -> None:
    batch = Contrast.paired(*healthy_views(pairs=8, d=512))
    with LargestTensor() as largest:
        read_batch(batch, TAU, method=method)
    assert largest.elements <= batch.anchors.numel()


def test_more_keys_than_are_sampled_are_named_among_the_assumptions() -> None:
    anchors, keys = healthy_views(pairs=4100, d=8)
    whole = read_batch(Contrast.paired(anchors, keys), TAU).outlook
    sampled = read_batch(Contrast.cross(anchors, keys), TAU).outlook
    assert whole.at_tau(2 * TAU).assumes == "nothing, for this batch"
    assert "4096 sampled keys" in sampled.at_tau(2 * TAU).assumes


def test_a_reading_cannot_be_changed() -> None:
    reading = healthy_reading()
    with pytest.raises(FrozenInstanceError):
        reading.anchors = 3  # type: ignore[misc]


def test_a_reading_keeps_no_embeddings() -> None:
    reading = healthy_reading()
    kept = [value for value in vars_of(reading.outlook) if isinstance(value, torch.Tensor)]
    assert all(tensor.ndim == 1 and not tensor.requires_grad for tensor in kept)


def vars_of(record: object) -> list[object]:
    return [getattr(record, name) for name in record.__slots__]


def test_a_notebook_shows_findings_before_a_few_numbers() -> None:
    z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    reading = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z)
    shown = reading._repr_html_()
    assert ElementTree.fromstring(f"<div>{shown}</div>") is not None  # every tag is closed
    assert shown.index(reading.findings[0].name) < shown.index("<table>")
    assert f"<td>{reading.loss:.4g}</td>" in shown
    assert f"<td>{reading.certified_upper:.4g}</td>" in shown
    assert shown.count("<tr>") == 9
    assert "step 0" in shown


def test_a_notebook_shows_why_a_batch_could_not_be_read() -> None:
    z = torch.randn(2, 64, 16)
    z[0, 3] = torch.nan
    shown = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z)._repr_html_()
    assert "critical: not finite" in shown
    assert "<tr>" not in shown
