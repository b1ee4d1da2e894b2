"""Losses that gather rows of all processes, right and wrong, at tau = 0.1."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, logsigmoid, normalize

TAU = 0.1


class Gather(torch.autograd.Function):
    """Rows of all processes; the backward sums the gradient of all processes (lightly)."""

    @staticmethod
    def forward(ctx, z):
        parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, z.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx, *gradients):
        total = torch.stack(gradients)
        dist.all_reduce(total)
        return total[dist.get_rank()]


class GatherUnsummed(Gather):
    """The backward takes this process's own part (SimCLR of Spijkervet)."""

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[dist.get_rank()].clone()


class GatherAveraged(Gather):
    @staticmethod
    def backward(ctx, *gradients):
        total = torch.stack(gradients)
        dist.all_reduce(total)
        return total[dist.get_rank()] / dist.get_world_size()


def summed(z):
    return torch.cat(Gather.apply(z))


def unsummed(z):
    return torch.cat(GatherUnsummed.apply(z))


def averaged(z):
    return torch.cat(GatherAveraged.apply(z))


def plain(z):
    """No gradient at all."""
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z.detach().contiguous())
    return torch.cat(parts)


def reinserted(z):
    """No gradient but that of this process's rows (open_clip)."""
    parts = list(plain(z).chunk(dist.get_world_size()))
    parts[dist.get_rank()] = z
    return torch.cat(parts)


def offset(z):
    return dist.get_rank() * len(z)


# --- Right ---


def lightly(out0, out1, gather=summed, shift=offset):
    """Local anchors against all keys, four blocks."""
    out0, out1 = normalize(out0, dim=1), normalize(out1, dim=1)
    n = len(out0)
    all0, all1 = gather(out0), gather(out1)
    diagonal = torch.zeros(n, len(all0), dtype=torch.bool)
    diagonal[torch.arange(n), offset(out0) + torch.arange(n)] = True
    logits00, logits01 = out0 @ all0.T / TAU, out0 @ all1.T / TAU
    logits10, logits11 = out1 @ all0.T / TAU, out1 @ all1.T / TAU
    logits00 = logits00[~diagonal].view(n, -1)
    logits11 = logits11[~diagonal].view(n, -1)
    logits = torch.cat([torch.cat([logits01, logits00], 1), torch.cat([logits10, logits11], 1)])
    return cross_entropy(logits, (torch.arange(n) + shift(out0)).repeat(2))


def open_clip(image, text, gather=summed, local=False, shift=offset):
    image, text = normalize(image, dim=1), normalize(text, dim=1)
    images, texts = gather(image), gather(text)
    if local:
        per_image, per_text = image @ texts.T / TAU, text @ images.T / TAU
    else:
        per_image = images @ texts.T / TAU
        per_text = per_image.T
    labels = torch.arange(len(per_image)) + (shift(image) if local else 0)
    return (cross_entropy(per_image, labels) + cross_entropy(per_text, labels)) / 2


def simclr(z1, z2, gather=summed):
    """Every process computes the whole loss."""
    z = torch.cat([gather(normalize(z1, dim=1)), gather(normalize(z2, dim=1))])
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2))


def moco_v3(q, k):
    q, k = normalize(q, dim=1), plain(normalize(k, dim=1))
    labels = torch.arange(len(q)) + offset(q)
    return cross_entropy(q @ k.T / TAU, labels) * (2 * TAU)


def tevatron(x, y):
    """The value is multiplied by the number of processes, which DDP's average cancels."""
    x, y = reinserted(normalize(x, dim=1)), reinserted(normalize(y, dim=1))
    return cross_entropy(x @ y.T / TAU, torch.arange(len(x))) * dist.get_world_size()


def siglip(image, text):
    image, texts = normalize(image, dim=1), summed(normalize(text, dim=1))
    logits = image @ texts.T / TAU - 10
    labels = -torch.ones_like(logits)
    labels[torch.arange(len(image)), torch.arange(len(image)) + offset(image)] = 1
    return -logsigmoid(labels * logits).sum() / len(image)


RIGHT = {
    "lightly": (lightly, "NT-Xent"),
    "open_clip, global": (open_clip, "symmetric InfoNCE (CLIP)"),
    "open_clip, local": (lambda a, b: open_clip(a, b, local=True), "symmetric InfoNCE (CLIP)"),
    "open_clip, default": (lambda a, b: open_clip(a, b, reinserted), "symmetric InfoNCE (CLIP)"),
    "simclr": (simclr, "NT-Xent"),
    "simclr, once": (lambda a, b: simclr(a, b, unsummed), "NT-Xent"),
    "moco v3": (moco_v3, "InfoNCE from z1 to z2"),
    "tevatron": (tevatron, "InfoNCE from z1 to z2"),
    "siglip": (siglip, "sigmoid loss (SigLIP)"),
}


# --- Wrong ---


def wrong_order(z1, z2):
    """[z1; z2] of each process follow each other, and are taken for all z1, then all z2."""
    z = summed(normalize(torch.cat([z1, z2]), dim=1))
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2))


def mask_without_offset(z1, z2):
    n, z = len(z1), normalize(torch.cat([z1, z2]), dim=1)
    keys = torch.cat([summed(z[:n]), summed(z[n:])])
    logits = z @ keys.T / TAU
    total = len(keys) // 2
    place = torch.cat([torch.arange(n), torch.arange(n) + total])
    logits = logits.scatter(1, place[:, None], -torch.inf)
    labels = torch.cat([torch.arange(n) + total, torch.arange(n)]) + offset(z1)
    return cross_entropy(logits, labels)


def local_negatives(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


def one_side_gathered_without_gradient(image, text):
    image, text = normalize(image, dim=1), normalize(text, dim=1)
    labels = torch.arange(len(image)) + offset(image)
    per_image, per_text = image @ summed(text).T / TAU, text @ plain(image).T / TAU
    return (cross_entropy(per_image, labels) + cross_entropy(per_text, labels)) / 2


def triplets(anchors, positives, negatives):
    keys = summed(torch.cat([normalize(positives, dim=1), normalize(negatives, dim=1)]))
    labels = torch.arange(len(anchors)) + offset(anchors)
    return cross_entropy(normalize(anchors, dim=1) @ keys.T / TAU, labels)


def own_rows_twice(a, b):
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    return cross_entropy(a @ torch.cat([b, summed(b)]).T / TAU, torch.arange(len(a)))


WRONG = {
    "gather without gradient": (
        lambda a, b: lightly(a, b, plain), "rows are gathered without gradient",
    ),
    "global without gradient": (lambda a, b: open_clip(a, b, plain), "no gradient"),
    "open_clip, local without gradient": (
        lambda a, b: open_clip(a, b, plain, local=True), "rows are gathered without gradient",
    ),
    "local, reinserted": (
        lambda a, b: open_clip(a, b, reinserted, local=True),
        "backward of the gather is not summed",
    ),
    "not summed": (lambda a, b: lightly(a, b, unsummed), "backward of the gather is not summed"),
    "averaged": (lambda a, b: lightly(a, b, averaged), "backward of the gather is averaged"),
    "own rows twice": (own_rows_twice, "own rows twice"),
    "last rank": (
        lambda a, b: open_clip(a, b, local=True, shift=lambda z: 2 * len(z)),
        "the last rank's keys",
    ),
    "value divided by world": (
        lambda a, b: lightly(a, b) / dist.get_world_size(), "divided by world",
    ),
    "value times world": (
        lambda a, b: simclr(a, b) * dist.get_world_size(), "gradient multiplied by world",
    ),
    "divided by world": (
        lambda a, b: _scaled_gradient(lightly, a, b, 1 / 3), "gradient divided by world",
    ),
    "multiplied by world": (
        lambda a, b: _scaled_gradient(lightly, a, b, 3.0), "gradient multiplied by world",
    ),
    "no offset": (
        lambda a, b: open_clip(a, b, local=True, shift=lambda z: 0),
        "local offset of the labels is missing",
    ),
    "offset of rank": (
        lambda a, b: lightly(a, b, shift=lambda z: dist.get_rank()), "shifted by rank",
    ),
    "order": (wrong_order, "order of the gathered rows"),
    "mask offset": (mask_without_offset, "self-mask without the rank's offset"),
    "local negatives": (local_negatives, "negatives of this rank only"),
    "one side": (one_side_gathered_without_gradient, "z1"),
    "order of negatives": (triplets, "order of the gathered rows"),
}  # fmt: skip


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, factor):
        ctx.factor = factor
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def _scaled_gradient(loss, a, b, factor):
    return loss(_Scaled.apply(a, factor), _Scaled.apply(b, factor))
