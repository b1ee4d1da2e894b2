"""After training: the encoder of a run, and embeddings of pictures with it."""

import io
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from eigenbatch.errors import ParameterError, RunError
from eigenbatch.runs.directory import RunDirectory, write_atomically
from eigenbatch.train.checkpoint_file import load_checkpoint
from eigenbatch.train.data import ImageConfig
from eigenbatch.train.data.pictures import Pictures
from eigenbatch.train.probes import embed, extract, linear_probe_sgd
from eigenbatch.train.run import Run, load_run

logger = logging.getLogger("eigenbatch")


def load_encoder(run: str | Path) -> nn.Module:
    """The trained encoder of a run, in evaluation mode on the CPU.

    Args:
        run: a run directory of `eigenbatch train`.

    Returns:
        The module, from normalised images (b, c, size, size) to features (b, f). Its attribute
        `preprocess` makes such images of uint8 pictures (b, c, h, w): scaled to `size`, divided by
        255, minus 0.5, divided by 0.25. ResNets have torchvision's parameter names.

    Examples:
        >>> from eigenbatch import load_encoder
        >>> from eigenbatch.train import Run, override, train
        >>> settings = ["budget.epochs=1", "encoder.width=4", "method.dim=8"]
        >>> _ = train(override(Run(), settings), tmp_path / "run", accelerator="cpu")
        >>> encoder = load_encoder(tmp_path / "run")
        >>> import torch
        >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> tuple(encoder(encoder.preprocess(images)).shape)
        (2, 16)
    """
    if not isinstance(run, str | Path):
        raise ParameterError(f"run must be the path of a run directory, got {run!r}")
    directory = RunDirectory(Path(run))
    settings = load_run(directory)
    data = _images(settings, directory)
    inputs = data.inputs(settings.views)
    encoder = settings.encoder.build(inputs)
    state = load_checkpoint(directory.checkpoint, logger.warning)["method"]
    own = {n.removeprefix("encoder."): v for n, v in state.items() if n.startswith("encoder.")}
    encoder.load_state_dict(own)
    encoder.preprocess = settings.views.build(  # type: ignore[assignment]
        data.image_size, data.channels
    ).undistorted
    return encoder.eval()


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Features of pictures, and their names."""

    rows: Tensor  # (n, f)
    names: list[str]

    def save(self, path: Path) -> list[Path]:
        """Write .npy (with the names in a .txt beside it), or .safetensors that holds both."""
        if path.suffix == ".npy":
            beside = path.with_suffix(".txt")
            names = "".join(name.replace("\n", "\\n") + "\n" for name in self.names)
            write_atomically(beside, names.encode(errors="surrogateescape"))
            content = io.BytesIO()
            np.save(content, self.rows.numpy())
            write_atomically(path, content.getvalue())
            return [path, beside]
        check_output(path)
        from safetensors.torch import save

        metadata = {"names": json.dumps(self.names)}
        write_atomically(path, save({"embeddings": self.rows}, metadata=metadata))
        return [path]


def check_output(path: Path) -> None:
    """Raise unless embeddings can be written to `path`."""
    if path.suffix not in (".npy", ".safetensors"):
        raise ParameterError(f"--out must end with .npy or .safetensors, got {str(path)!r}")
    for file in (path, path.with_suffix(".txt")) if path.suffix == ".npy" else (path,):
        if file.exists():
            raise ParameterError(f"{file} exists already: move it, or choose another --out")
    if not path.parent.is_dir():
        raise ParameterError(f"{path.parent} is no folder: create it, or choose another --out")


def embed_pictures(
    run: Path,
    pictures: Path,
    *,
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embedded:
    """Features of every picture below a folder or inside a zip, with a run's encoder.

    Args:
        run: a run directory that was trained on images.
        pictures: any folder or zip; classes and splits do not matter.
        workers: processes that read pictures.
        progress: called with pictures done and in all.
    """
    directory = RunDirectory(run)
    settings = load_run(directory)
    size = _images(settings, directory).image_size
    found = Pictures(pictures, size=size)
    encoder = load_encoder(run)
    preprocess: Callable[[Tensor], Tensor] = encoder.preprocess  # type: ignore[assignment]
    rows = embed(
        encoder, found, preprocess, workers=workers,
        progress=lambda done: progress(done, len(found)),
    )  # fmt: skip
    return Embedded(rows, found.names)


def probe_run(run: Path, data: ImageConfig) -> float:
    """Accuracy of a linear classifier on a run's frozen features of other images.

    The paper's protocol: SGD with momentum, 90 epochs at a rate of 0.03.

    Args:
        run: a run directory that was trained on images.
        data: labelled images; grey ones are repeated for an encoder of coloured ones.

    Returns:
        The share of test images that are classified right.

    Examples:
        >>> from eigenbatch.train import Run, override, probe_run, train
        >>> small = ["data.train_size=100", "data.test_size=100", "encoder.width=8"]
        >>> run = override(Run(), [*small, "batches.batch_size=50", "budget.epochs=1"])
        >>> directory = train(run, tmp_path / "run", accelerator="cpu")
        >>> 0 <= probe_run(directory.path, run.data) <= 1
        True
    """
    encoder = load_encoder(run)
    preprocess: Callable[[Tensor], Tensor] = encoder.preprocess  # type: ignore[assignment]
    train, test = (
        extract(encoder, data.images(split), preprocess, workers=data.workers)
        for split in ("train", "test")
    )
    return linear_probe_sgd(train, test, generator=torch.Generator().manual_seed(0))


def export_encoder(run: Path, path: Path) -> None:
    """Write the encoder's weights as safetensors, with what its inputs must look like."""
    from safetensors.torch import save_file

    encoder = load_encoder(run)
    settings = load_run(RunDirectory(run))
    data = _images(settings, RunDirectory(run))
    inputs = data.inputs(settings.views)
    facts = {
        "encoder": settings.encoder.kind,
        "input": f"(b, {inputs.channels}, {inputs.size}, {inputs.size})",
        "preprocess": "pixels / 255, minus 0.5, divided by 0.25",
    }
    weights = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    save_file(weights, path, metadata=facts)


def _images(settings: Run, directory: RunDirectory) -> ImageConfig:
    if not isinstance(settings.data, ImageConfig):
        raise RunError(f"{directory.path} was trained on {settings.data.kind}, not on images")
    return settings.data
