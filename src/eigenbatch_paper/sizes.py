"""What the training runs of a claim are, in words; made from their settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from eigenbatch_paper.claim import Chunk, Scale
from eigenbatch_paper.printed import PRINTED

PICTURES = {"folder": "Tiny-ImageNet-100 at 32 x 32", "cifar10": "CIFAR-10"}


def setting(scale: Scale, chunks: Sequence[Chunk], base: Mapping[str, Any]) -> str:
    """What the runs of a scale of ours have in common, and every value where they differ."""

    def values(name: str) -> str:
        found = {chunk.settings.get(name, base.get(name)) for chunk in chunks}
        return " and ".join(f"{value:,g}" for value in sorted(found - {None}))

    if scale == "smoke":
        return f"{values('train_images')} digits, ConvNet, {values('epochs')} epochs"
    sets = {str(chunk.settings.get("data")) for chunk in chunks}
    pictures = " and ".join(text for name, text in PICTURES.items() if name in sets)
    queue = values("queue_size")
    return (
        f"{values('train_images')} pictures of {pictures}, ConvNet 32-64-128-128, batches of "
        f"{values('batch_size')} pictures, k={values('pool_size')}, tau={values('tau')}, "
        + (f"softmax over the batch and a queue of {queue}, momentum {values('momentum')}, "
           if queue else "")
        + f"{values('epochs')} epochs"
    )  # fmt: skip


def printed_setting(name: str) -> str:
    """The printed setting of a claim; of one that is not printed, that of most others."""
    one = PRINTED.get(name, PRINTED["pool-policies"])
    data = {"imagenet100": "ImageNet-100", "imagenet1k": "ImageNet-1k", "cifar10": "CIFAR-10"}
    encoder = " and ".join(one.encoder).replace("resnet", "ResNet-")
    pools = " and ".join(f"{k:,}" for k in one.k)
    return (
        f"{data[one.data]}, {encoder}, n={one.n:,}, k={pools}, tau={one.tau:g}, {one.epochs} epochs"
    )
