"""Small runs on digits for the tests of training."""

import json

from eigenbatch.train.loop import Observer
from eigenbatch.train.run import Run
from eigenbatch.train.settings import override
from eigenbatch.train.trainer import train

SMALL = override(  # 5 batches per epoch
    Run(),
    [
        "budget.epochs=2",
        "batches.batch_size=240",
        "batches.selector=greedy-16",
        "encoder.width=4",
        "method.dim=16",
        "evaluation.every=2",
    ],
)


def small(*settings):
    return override(SMALL, settings)


def start(run, path, **options):
    return train(run, path, accelerator="cpu", devices=1, **options)


def lines(directory):
    return [json.loads(line) for line in directory.metrics.read_text().splitlines()]


def facts(directory):
    """Every line without times, and without the checksum of lines that hold times."""
    return [
        {k: v for k, v in line.items() if "seconds" not in k and k not in ("record", "check")}
        for line in lines(directory)
    ]


class StopAfter(Observer):
    def __init__(self, step):
        self.step = step

    def on_step(self, training, step):
        training.stop = training.step == self.step
