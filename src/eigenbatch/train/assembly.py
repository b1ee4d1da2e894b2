"""From the settings of a run to its parts."""

from dataclasses import dataclass

import torch

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.errors import ParameterError
from eigenbatch.missing import require
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.train.data.source import ImageSource, Source
from eigenbatch.train.devices import Devices, seed_everything
from eigenbatch.train.loader import BatchLoader
from eigenbatch.train.loop import Training
from eigenbatch.train.methods.method import Method
from eigenbatch.train.run import Run

require("kornia", "lightning")  # looked for, not imported: whoever trains has the extra


@dataclass(slots=True)
class Assembled:
    """A run ready to start.

    Args:
        run: the settings.
        training: the state that `fit` trains.
        source: data, views and evaluation.
        sampler: chooses the batches.
        cache: embeddings that batches are chosen from.
        method: as built, not wrapped by Fabric.
        monitor: takes the readings.
        loader: yields (ids, batch).

    Examples:
        >>> from eigenbatch.train import Run, assemble
        >>> from eigenbatch.train.devices import SingleCPU
        >>> type(assemble(Run(), SingleCPU()).method).__name__
        'SimCLR'
    """

    run: Run
    training: Training
    source: Source
    sampler: SpectralBatchSampler
    cache: EmbeddingCache
    method: Method
    monitor: SpectralMonitor
    loader: BatchLoader

    def evaluate(self, final: bool) -> dict[str, float]:
        """Accuracy of what was learnt so far."""
        return self.source.evaluate(self.method, final=final)


def assemble(run: Run, fabric: Devices) -> Assembled:
    """Everything of a run, seeded by its settings: equal settings give equal runs.

    Processes share the initial weights and the selected batches; from the first step on each draws
    views with a generator of its own.

    Args:
        run: the settings.
        fabric: Lightning's Fabric, or one process on the CPU.

    Returns:
        The parts, ready for `fit`.

    Examples:
        >>> from eigenbatch.train import Run, assemble
        >>> from eigenbatch.train.devices import SingleCPU
        >>> len(assemble(Run(), SingleCPU()).loader)  # 1,437 digits in batches of 128
        11
    """
    seed_everything(run.seed)
    source = run.data.open(run.views)
    if run.evaluation.transfer is not None:
        if not isinstance(source, ImageSource):
            raise ParameterError("evaluation.transfer probes image features: data has no images")
        source.transfer = run.evaluation.transfer
    encoders = [run.encoder.build(source.inputs(t)) for t in range(run.method.encoders)]
    method = run.method.build(*encoders)
    cache = EmbeddingCache(
        len(source.train),  # type: ignore[arg-type]
        run.method.dim,
        towers=run.method.encoders,
    )
    sampler = run.batches.build(
        cache,
        seed=run.seed,
        tau=lambda: method.tau,
        held_out=source.pairs(method, held_out=True),
        trained=source.pairs(method, held_out=False),
    )
    optimizer = run.optimizer.build(method)
    scheduler = run.schedule.build(
        optimizer, steps_per_epoch=len(sampler), epochs=run.budget.epochs
    )
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wrapped, optimizer = fabric.setup(method, optimizer)
    loader = BatchLoader(
        source.train,
        sampler,
        source.views,
        device=fabric.device,
        workers=run.data.workers,
        seed=run.seed,
    )
    training = Training(
        fabric=fabric,
        method=wrapped,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
        epochs=run.budget.epochs,
    )
    every = run.evaluation.read_every or max(1, len(sampler) // 2)
    monitor = SpectralMonitor(lambda: method.tau, every=every)
    if fabric.global_rank:
        seed_everything(run.seed + 1_000_003 * fabric.global_rank)
    return Assembled(run, training, source, sampler, cache, method, monitor, loader)
