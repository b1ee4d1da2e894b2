"""One of several processes: train a few steps and note the batches and views of this rank."""

import atexit
import json
import os
import sys
from pathlib import Path

import torch

from eigenbatch.train import Observer, Run, override, train

RUN = override(
    Run(),
    ["budget.epochs=1", "batches.batch_size=240", "encoder.width=4", "batches.selector=greedy-16",
     "method.dim=16"],
)  # fmt: skip


@atexit.register
def group_has_ended():
    """Handlers run in reverse: the trainer's, registered later, has run by now."""
    if torch.distributed.is_initialized():
        print("the process group outlives the trainer", file=sys.stderr, flush=True)
        os._exit(3)


class Notes(Observer):
    def __init__(self, stop):
        self.stop, self.ids, self.views = stop, [], []

    def on_start(self, training):
        loader = training.loader
        views = loader._views

        def noted(sample):
            batch = views(sample)
            self.views.append([float(batch.first.sum()), float(batch.second.sum())])
            return batch

        loader._views = noted

    def on_step(self, training, step):
        self.ids.append(step.ids.tolist())
        training.stop = training.step == self.stop


def main(path, name, stop, resume):
    torch.set_num_threads(1)
    notes = Notes(int(stop))
    train(RUN, Path(path), accelerator="cpu", observers=[notes], resume=resume == "yes")
    rank = os.environ.get("RANK", "0")
    Path(f"{path}-{name}-{rank}.json").write_text(json.dumps([notes.ids, notes.views]))


if __name__ == "__main__":
    main(*sys.argv[1:])
