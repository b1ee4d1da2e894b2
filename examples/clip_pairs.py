"""Two towers with CLIP's loss on sentence pairs, in our loop without changing it.

    python examples/clip_pairs.py train.en train.de runs/clip

Line i of the first file belongs to line i of the second. Every tenth pair is kept for evaluation.
"""

import sys
from pathlib import Path

from eigenbatch.runs import read_run
from eigenbatch.train import override, recipe, train


def main(first: str, second: str, out: str, *settings: str) -> None:
    run = override(
        recipe("pairs-cpu"),
        [f"data.first={first}", f"data.second={second}", "method.learn_tau=true", *settings],
    )
    train(run, Path(out), accelerator="cpu")
    record = read_run(Path(out))
    untrained, trained = record.series["mrr"].value[[0, -1]]
    print(f"mean reciprocal rank: {untrained:.3f} untrained, {trained:.3f} trained")
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
