"""Contrastive losses, right and wrong, each written as somebody would write it, at tau = 0.1."""

import math

import torch
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    log_softmax,
    logsigmoid,
    nll_loss,
    normalize,
    one_hot,
    softmax,
)

TAU = 0.1


# --- Right ---


def nt_xent(z1, z2, tau=TAU):
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / tau).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


def nt_xent_by_exp(z_i, z_j):
    """By hand, with exp and a mask that removes the diagonal's column."""
    n = len(z_i)
    z = torch.cat([z_i, z_j])
    sim = cosine_similarity(z[:, None], z[None], dim=2)
    positive = torch.cat([torch.diag(sim, n), torch.diag(sim, -n)])
    mask = ~torch.eye(2 * n, dtype=torch.bool)
    denominator = (sim / TAU).exp()[mask].view(2 * n, -1).sum(1)
    return -((positive / TAU).exp() / denominator).log().mean()


def nt_xent_by_columns(z1, z2):
    """Positive in column 0, negatives behind it (sthalles)."""
    features = normalize(torch.cat([z1, z2]), dim=1)
    labels = torch.cat([torch.arange(len(z1))] * 2)
    labels = labels[None] == labels[:, None]
    similarity = features @ features.T
    mask = torch.eye(len(labels), dtype=torch.bool)
    labels = labels[~mask].view(len(labels), -1)
    similarity = similarity[~mask].view(len(similarity), -1)
    positives = similarity[labels].view(len(labels), -1)
    negatives = similarity[~labels].view(len(similarity), -1)
    logits = torch.cat([positives, negatives], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def nt_xent_by_blocks(a, b):
    """Four blocks and a large finite mask, as in the TensorFlow code of SimCLR."""
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    masks = one_hot(torch.arange(len(a)), len(a)) * 1e9
    aa, bb, ab, ba = a @ a.T / TAU - masks, b @ b.T / TAU - masks, a @ b.T / TAU, b @ a.T / TAU
    labels = torch.arange(len(a))
    first = cross_entropy(torch.cat([ab, aa], 1), labels)
    second = cross_entropy(torch.cat([ba, bb], 1), labels)
    return (first + second) / 2


def nt_xent_of_log_softmax(z1, z2):
    """log_softmax before cross-entropy is the same function."""
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / TAU).masked_fill(torch.eye(len(z), dtype=torch.bool), -9e15)
    return cross_entropy(log_softmax(logits, 1), torch.arange(len(z)).roll(len(z1)))


def nt_xent_of_unit_rows(z1, z2):
    """Normalised outside."""
    z = torch.cat([z1, z2])
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


def nt_xent_interleaved(z1, z2):
    z = normalize(torch.stack([z1, z2], 1).flatten(0, 1), dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)) ^ 1)


def nt_xent_in_a_loop(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    total = 0.0
    for i in range(len(z)):
        j = (i + len(z1)) % len(z)
        others = torch.stack([z[i] @ z[k] / TAU for k in range(len(z)) if k != i])
        total = total + others.logsumexp(0) - z[i] @ z[j] / TAU
    return total / len(z)


def nt_xent_in_float32(z1, z2):
    return nt_xent(z1.float(), z2.float())


class Module(nn.Module):
    """With a learned temperature."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / TAU)))

    def forward(self, image_features, text_features):
        image = image_features / image_features.norm(dim=-1, keepdim=True)
        text = text_features / text_features.norm(dim=-1, keepdim=True)
        per_image = self.logit_scale.exp() * image @ text.t()
        labels = torch.arange(len(image))
        return (cross_entropy(per_image, labels) + cross_entropy(per_image.t(), labels)) / 2


def open_clip(image_features, text_features, logit_scale):
    """The scale is an argument, rows come normalised."""
    per_image = logit_scale * image_features @ text_features.T
    labels = torch.arange(len(per_image))
    return (cross_entropy(per_image, labels) + cross_entropy(per_image.T, labels)) / 2


def clip_by_log_softmax(x, y):
    logits = normalize(x, dim=1) @ normalize(y, dim=1).T / TAU
    rows, columns = logits.log_softmax(1).diag(), logits.log_softmax(0).diag()
    return -(rows.mean() + columns.mean()) / 2


def info_nce(query, positive_key, negative_keys=None, temperature=TAU):
    """info-nce-pytorch, without further negatives."""
    query, positive_key = normalize(query, dim=-1), normalize(positive_key, dim=-1)
    return cross_entropy(query @ positive_key.T / temperature, torch.arange(len(query)))


def moco(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1).detach()
    positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
    logits = torch.cat([positive, q @ queue.clone().detach().T], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def moco_columns(q, k, queue):
    """The queue lies as (d, K)."""
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), torch.einsum("nc,ck->nk", [q, queue])], 1)
    return cross_entropy(logits / TAU, torch.zeros(len(q), dtype=torch.long))


def info_nce_with_negatives(query, positive_key, negative_keys):
    """info-nce-pytorch, unpaired negatives."""
    query, positive_key, negative_keys = (
        normalize(z, dim=-1) for z in (query, positive_key, negative_keys)
    )
    positive = (query * positive_key).sum(1, keepdim=True)
    logits = torch.cat([positive, query @ negative_keys.T], 1)
    return cross_entropy(logits / TAU, torch.zeros(len(logits), dtype=torch.long))


def ranking_with_hard_negatives(anchors, positives, negatives):
    """MultipleNegativesRankingLoss of triplets."""
    keys = torch.cat([normalize(positives, dim=1), normalize(negatives, dim=1)])
    return cross_entropy(normalize(anchors, dim=1) @ keys.T * 10, torch.arange(len(anchors)))


def supcon(z1, z2, labels):
    """L_out of Khosla et al."""
    z, y = normalize(torch.cat([z1, z2]), dim=1), torch.cat([labels, labels])
    itself = torch.eye(len(z), dtype=torch.bool)
    logits = (z @ z.T / TAU).masked_fill(itself, -torch.inf)
    log_p = logits.log_softmax(1).masked_fill(itself, 0.0)
    mates = (y[:, None] == y) & ~itself
    return -((log_p * mates).sum(1) / mates.sum(1)).mean()


class SupConLoss(nn.Module):
    """The official form: features (n, views, d)."""

    def forward(self, features, labels=None, mask=None):
        n, views = features.shape[:2]
        mask = torch.eye(n) if labels is None else (labels[:, None] == labels).to(features)
        contrast = normalize(torch.cat(torch.unbind(features, dim=1)), dim=1)
        logits = contrast @ contrast.T / TAU
        logits = logits - logits.max(dim=1, keepdim=True)[0].detach()
        mask = mask.repeat(views, views)
        others = 1 - torch.eye(len(mask)).to(mask)
        mask = mask * others
        log_p = logits - ((logits.exp() * others).sum(1, keepdim=True)).log()
        return -((mask * log_p).sum(1) / mask.sum(1)).view(views, n).mean()


def metric_learning(embeddings, labels):
    """NTXentLoss of pytorch-metric-learning: one softmax for every positive pair."""
    z = normalize(embeddings, dim=1)
    logits = z @ z.T / TAU
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(z), dtype=torch.bool)
    losses = []
    for a, p in positives.nonzero():
        row = torch.cat([logits[a, p][None], logits[a][~same[a]]])
        losses.append(row.logsumexp(0) - row[0])
    return torch.stack(losses).mean()


class SigLip(nn.Module):
    def __init__(self):
        super().__init__()
        self.t_prime = nn.Parameter(torch.tensor(math.log(1 / TAU)))
        self.b = nn.Parameter(torch.tensor(-10.0))

    def forward(self, img_emb, txt_emb):
        logits = normalize(img_emb) @ normalize(txt_emb).T * self.t_prime.exp() + self.b
        labels = 2 * torch.eye(len(logits), dtype=logits.dtype) - 1
        return -logsigmoid(labels * logits).sum() / len(logits)


def siglip_of_arguments(image_features, text_features, logit_scale, logit_bias):
    logits = logit_scale * image_features @ text_features.T + logit_bias
    labels = 2 * torch.eye(len(logits), dtype=logits.dtype) - 1
    return -logsigmoid(labels * logits).sum() / len(logits)


RIGHT = {
    "nt_xent": (nt_xent, "NT-Xent"),
    "by exp": (nt_xent_by_exp, "NT-Xent"),
    "by columns": (nt_xent_by_columns, "NT-Xent"),
    "by blocks": (nt_xent_by_blocks, "NT-Xent"),
    "of log_softmax": (nt_xent_of_log_softmax, "NT-Xent"),
    "unit rows": (nt_xent_of_unit_rows, "NT-Xent"),
    "interleaved": (nt_xent_interleaved, "NT-Xent"),
    "in a loop": (nt_xent_in_a_loop, "NT-Xent"),
    "in float32": (nt_xent_in_float32, "NT-Xent"),
    "learned scale": (Module(), "symmetric InfoNCE (CLIP)"),
    "open_clip": (open_clip, "symmetric InfoNCE (CLIP)"),
    "by log_softmax": (clip_by_log_softmax, "symmetric InfoNCE (CLIP)"),
    "info-nce": (info_nce, "InfoNCE from z1 to z2"),
    "moco": (moco, "InfoNCE with a queue (MoCo)"),
    "moco, (d, K)": (moco_columns, "InfoNCE with a queue (MoCo)"),
    "info-nce with negatives": (info_nce_with_negatives, "InfoNCE with a queue (MoCo)"),
    "triplets": (ranking_with_hard_negatives, "InfoNCE with further negatives"),
    "supcon": (supcon, "SupCon"),
    "SupConLoss": (SupConLoss(), "SupCon"),
    "metric learning": (metric_learning, "labelled pairs (pytorch-metric-learning)"),
    "siglip": (SigLip(), "sigmoid loss (SigLIP)"),
    "siglip, arguments": (siglip_of_arguments, "sigmoid loss (SigLIP)"),
    "method": (Module().forward, "symmetric InfoNCE (CLIP)"),
    "views of one matrix": (lambda z: nt_xent(*z.chunk(2)), "NT-Xent"),
    "interleaved matrix": (lambda z: nt_xent(z[::2], z[1::2]), "NT-Xent"),
}


# --- Right only if meant ---


def dcl(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    n, logits = len(z1), z @ z.T / TAU
    positive = torch.cat([logits.diagonal(n), logits.diagonal(-n)])
    itself = torch.eye(2 * n, dtype=torch.bool)
    negatives = logits.masked_fill(itself | itself.roll(n, 0), -torch.inf)
    return (negatives.logsumexp(1) - positive).mean()


def smoothed(z1, z2):
    logits = normalize(z1, dim=1) @ normalize(z2, dim=1).T / TAU
    labels = torch.arange(len(z1))
    kwargs = {"label_smoothing": 0.1}
    return (cross_entropy(logits, labels, **kwargs) + cross_entropy(logits.T, labels, **kwargs)) / 2


def with_margin(z1, z2):
    cosines = normalize(z1, dim=1) @ normalize(z2, dim=1).T
    logits = (cosines - 0.2 * torch.eye(len(z1))) / TAU
    return cross_entropy(logits, torch.arange(len(z1)))


def moco_v3(q, k):
    logits = normalize(q, dim=1) @ normalize(k, dim=1).detach().T / TAU
    return cross_entropy(logits, torch.arange(len(q))) * (2 * TAU)


def supcon_of_base_temperature(features):
    return TAU / 0.07 * SupConLoss()(features)


def symmetric(z1, z2):
    return clip_by_log_softmax(z1, z2)


MEANT = {
    "decoupled": (dcl, "decoupled"),
    "label smoothing": (smoothed, "label smoothing 0.1"),
    "margin": (with_margin, "margin of 0.2"),
    "one direction": (info_nce, "one direction only"),
    "stop-gradient": (moco_v3, "no gradient reaches z2"),
    "constant factor": (moco_v3, "times 0.2"),
    "two directions added": (lambda a, b: 2 * symmetric(a, b), "times 2"),
    "not normalised": (nt_xent_of_unit_rows, "not normalised inside"),
    "constant added": (lambda a, b: nt_xent(a, b) + 1, "offset of 1"),
    "labels ignored": (lambda z1, z2, labels: nt_xent(z1, z2), "labels change nothing"),
    "tiny epsilon": (
        lambda a, b: -((-_terms(a, b)).exp() + 1e-4).log().mean(), "epsilon of 0.0001",
    ),
}  # fmt: skip


# --- Wrong ---


def _terms(z1, z2, *, mask=-torch.inf, scale=1 / TAU, labels=None):
    """(2n,) losses of NT-Xent, with knobs."""
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T * scale).masked_fill(torch.eye(len(z), dtype=torch.bool), mask)
    labels = torch.arange(len(z)).roll(len(z1)) if labels is None else labels
    return cross_entropy(logits, labels, reduction="none")


def _cross(z1, z2, scale=1 / TAU):
    return normalize(z1, dim=1) @ normalize(z2, dim=1).T * scale


def _both(logits, labels=None):
    labels = torch.arange(len(logits)) if labels is None else labels
    return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2


def normalised_over_the_batch(z1, z2):
    return nt_xent_of_unit_rows(normalize(z1, dim=0), normalize(z2, dim=0))


def normalised_over_both_views(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=0)
    return nt_xent_of_unit_rows(*z.chunk(2))


def one_view_not_normalised(z1, z2):
    return _both(normalize(z1, dim=1) @ z2.T / TAU)


def no_self_mask(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    return cross_entropy(z @ z.T / TAU, torch.arange(len(z)).roll(len(z1)))


def mask_of_tiny_number(z1, z2):
    return _terms(z1, z2, mask=-1e-9).mean()


def mask_times_logits(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = z @ z.T / TAU * (1 - torch.eye(len(z)))
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


def positive_among_negatives(q, k):
    logits = _cross(q, k)
    logits = torch.cat([logits.diagonal()[:, None], logits], 1)
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def scale_not_exponentiated(image, text):
    return _both(_cross(image, text, math.log(1 / TAU)))


def log_of_the_mean(z1, z2):
    return -(-_terms(z1, z2)).exp().mean().log()


def softmax_before_cross_entropy(z1, z2):
    return _both_of(softmax(_cross(z1, z2), 1), softmax(_cross(z1, z2).T, 1))


def _both_of(a, b):
    labels = torch.arange(len(a))
    return (cross_entropy(a, labels) + cross_entropy(b, labels)) / 2


def nll_of_probabilities(z1, z2):
    return nll_loss(softmax(_cross(z1, z2), 1), torch.arange(len(z1)))


def exp_before_cross_entropy(z1, z2):
    return _both(_cross(z1, z2).exp())


def one_view_twice(z1, z2):
    return nt_xent(z1, z1)


def second_direction_of_one_view(z1, z2):
    a, b = normalize(z1, dim=1), normalize(z2, dim=1)
    return _both_of(a @ b.T / TAU, b @ b.T / TAU)


def positive_is_the_anchor(z1, z2):
    return _terms(z1, z2, mask=10.0, labels=torch.arange(2 * len(z1))).mean()


def off_by_one(z1, z2):
    return _both(_cross(z1, z2), (torch.arange(len(z1)) + 1) % len(z1))


def labels_of_zeros(z1, z2):
    return cross_entropy(_cross(z1, z2), torch.zeros(len(z1), dtype=torch.long))


def rolled_by_one(z1, z2):
    return _terms(z1, z2, labels=torch.arange(2 * len(z1)).roll(1)).mean()


def interleaved_labels(z1, z2):
    return _terms(z1, z2, labels=torch.arange(2 * len(z1)) ^ 1).mean()


def own_view_negatives(z1, z2):
    a, b = normalize(z1, dim=1), normalize(z2, dim=1)
    losses = []
    for x, y in ((a, b), (b, a)):
        positive = (x * y).sum(1, keepdim=True) / TAU
        own = (x @ x.T / TAU).fill_diagonal_(-torch.inf)
        losses.append((torch.cat([positive, own], 1).logsumexp(1) - positive[:, 0]).mean())
    return sum(losses) / 2


def numerator_without_temperature(z1, z2):
    cosines = _cross(z1, z2, 1)
    return -(cosines.diagonal().exp() / (cosines / TAU).exp().sum(1)).log().mean()


def reversed_sign(z1, z2):
    return _both(-_cross(z1, z2))


def distances(z1, z2):
    return _both(torch.cdist(normalize(z1, dim=1), normalize(z2, dim=1)) / TAU)


def minus_distances(z1, z2):
    return _both(-torch.cdist(normalize(z1, dim=1), normalize(z2, dim=1)) / TAU)


def clipped_cosines(z1, z2):
    return _both(_cross(z1, z2).relu())


def absolute_cosines(z1, z2):
    return _both(_cross(z1, z2).abs())


def queue_first(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([q @ queue.T, (q * k).sum(1, keepdim=True)], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def queue_forgotten(q, k, queue):
    return cross_entropy(_cross(q, k), torch.arange(len(q)))


def queue_over_the_batch(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / TAU
    return -logits.log_softmax(0)[:, 0].mean()


def queue_positive_of_the_query(q, k, queue):
    return moco(q, q, queue)


def query_detached(q, k, queue):
    return moco(q.detach(), k, queue) + 0 * q.sum()


def pushed_only(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    positive = logits.gather(1, torch.arange(len(z)).roll(len(z1))[:, None])[:, 0]
    return (logits.logsumexp(1) - positive.detach()).mean()


def denominator_detached(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    positive = logits.gather(1, torch.arange(len(z)).roll(len(z1))[:, None])[:, 0]
    return (logits.logsumexp(1).detach() - positive).mean()


def keys_detached(z1, z2):
    a, b = normalize(z1, dim=1), normalize(z2, dim=1)
    return _both_of(a @ b.detach().T / TAU, b @ a.detach().T / TAU)


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def half_gradient(z1, z2):
    return nt_xent(HalfGradient.apply(z1), HalfGradient.apply(z2))


def no_gradient(z1, z2):
    with torch.no_grad():
        return nt_xent(z1, z2)


def supcon_with_the_anchor(z1, z2, labels):
    z, y = normalize(torch.cat([z1, z2]), dim=1), torch.cat([labels, labels])
    log_p = (z @ z.T / TAU).log_softmax(1)
    mates = y[:, None] == y
    return -((log_p * mates).sum(1) / mates.sum(1)).mean()


def siglip_over_all_pairs(z1, z2):
    logits = _cross(z1, z2) - 10
    return binary_cross_entropy_with_logits(logits, torch.eye(len(z1)).to(logits))


def one_fraction(z1, z2):
    exp = _cross(z1, z2).exp()
    return -(exp.diagonal().sum() / exp.sum()).log()


def whole_matrix(z1, z2):
    return -_cross(z1, z2).flatten().log_softmax(0).view(len(z1), -1).diagonal().mean()


def mean_of_negatives(z1, z2):
    exp = _cross(z1, z2).exp()
    positive = exp.diagonal()
    average = (exp.sum(1) - positive) / (len(z1) - 1)
    return -(positive / (positive + average)).log().mean()


def misaligned(z1, z2):
    return _both(_cross(z1, z2.roll(1, 0)))


def half_masked(z1, z2):
    z, n = normalize(torch.cat([z1, z2]), dim=1), len(z1)
    mask = torch.zeros(2 * n, 2 * n, dtype=torch.bool)
    mask[:n, :n] = torch.eye(n, dtype=torch.bool)
    return cross_entropy((z @ z.T / TAU).masked_fill(mask, -1e9), torch.arange(2 * n).roll(n))


def stacked_labels_of_interleaved_views(features):
    z = normalize(features.reshape(2 * len(features), -1), dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2))


def last_key_missing(z1, z2):
    logits = _cross(z1, z2)
    return -(logits.diagonal() - logits[:, :-1].logsumexp(1)).mean()


def siglip_with_labels(zero, one):
    def loss(z1, z2):
        logits = _cross(z1, z2) - 10
        labels = zero + (one - zero) * torch.eye(len(logits)).to(logits)
        return -logsigmoid(labels * logits).sum() / len(logits)

    return loss


def negatives_detached(z1, z2):
    a, b = normalize(z1, dim=1), normalize(z2, dim=1)
    others = (a @ b.detach().T)[~torch.eye(len(a), dtype=torch.bool)].view(len(a), -1)
    logits = torch.cat([(a * b).sum(1, keepdim=True), others], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))


def length_detached(z1, z2):
    z1, z2 = (z / z.norm(dim=1, keepdim=True).detach() for z in (z1, z2))
    return _both(z1 @ z2.T / TAU)


def softmax_in_one_direction(z1, z2):
    logits = _cross(z1, z2)
    return _both_of(logits, logits.softmax(0).T)


def queue_asked_by_keys(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), k @ queue.T], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def queue_label_of_rows(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / TAU
    return cross_entropy(logits, torch.arange(len(q)))


def shifted_in_the_stack(z1, z2):
    n = len(z1)
    return _terms(z1, z2, labels=(torch.arange(2 * n) + n + 1) % (2 * n)).mean()


def positives_as_negatives(z1, z2):
    return -(1 - _cross(z1, z2).softmax(1).diagonal()).log().mean()


WRONG = {
    "batch norm": (normalised_over_the_batch, "normalised over the batch"),
    "batch norm of both": (normalised_over_both_views, "normalised over the batch"),
    "one norm": (lambda a, b: nt_xent_of_unit_rows(a / a.norm(), b / b.norm()), "as a whole"),
    "one view not normalised": (one_view_not_normalised, "z2 is not normalised"),
    "no self-mask": (no_self_mask, "no self-mask"),
    "mask -1e-9": (mask_of_tiny_number, "self-mask of 0"),
    "mask times logits": (mask_times_logits, "self-mask of 0"),
    "mask -10": (lambda a, b: _terms(a, b, mask=-10).mean(), "self-mask of -10"),
    "positive twice": (positive_among_negatives, "positive twice"),
    "multiplied": (lambda a, b: nt_xent(a, b, 1 / TAU), "temperature multiplied"),
    "absent": (lambda a, b: nt_xent(a, b, 1), "temperature absent"),
    "squared": (lambda a, b: nt_xent(a, b, TAU**2), "temperature squared"),
    "doubled": (lambda a, b: nt_xent(a, b, 2 * TAU), "temperature doubled"),
    "halved": (lambda a, b: nt_xent(a, b, TAU / 2), "temperature halved"),
    "0.07": (lambda a, b: nt_xent(a, b, 0.07), "tau = 0.07"),
    "log scale": (scale_not_exponentiated, "logit scale not exponentiated"),
    "clamped": (lambda a, b: _both(_cross(a, b, math.log(100))), "clamped at log(100)"),
    "sqrt d": (lambda a, b: _both(_cross(a, b, a.shape[1] ** -0.5)), "sqrt(d)"),
    "numerator": (numerator_without_temperature, "temperature missing in the numerator"),
    "sum": (lambda a, b: _terms(a, b).sum(), "sum over both views' anchors"),
    "cross sum": (
        lambda a, b: cross_entropy(_cross(a, b), torch.arange(len(a)), reduction="sum"),
        "sum over the anchors",
    ),
    "mean twice": (lambda a, b: _terms(a, b).mean() / len(a), "mean taken twice"),
    "log of mean": (log_of_the_mean, "-log of the mean"),
    "no log": (nll_of_probabilities, "no logarithm"),
    "softmax twice": (softmax_before_cross_entropy, "softmax twice"),
    "exp twice": (exp_before_cross_entropy, "exponential twice"),
    "one view twice": (one_view_twice, "z2 is never used"),
    "other view twice": (lambda a, b: _both(_cross(b, b)), "z1 is never used"),
    "own view": (second_direction_of_one_view, "one view twice"),
    "itself positive": (positive_is_the_anchor, "the anchor itself is its positive"),
    "off by one": (off_by_one, "labels shifted by one"),
    "zeros": (labels_of_zeros, "always key 0"),
    "rolled by one": (rolled_by_one, "neighbouring row of the stack"),
    "interleaved": (interleaved_labels, "labels are for interleaved views"),
    "own-view negatives": (own_view_negatives, "negatives of the anchor's own view only"),
    "sign": (reversed_sign, "sign of the similarity reversed"),
    "sign of the loss": (lambda a, b: -nt_xent(a, b), "sign of the loss reversed"),
    "minus distance": (minus_distances, "distance in place of the cosine"),
    "clipped": (clipped_cosines, "cosine clipped at 0"),
    "absolute": (absolute_cosines, "absolute value of the cosine"),
    "positive last": (queue_first, "first negative"),
    "queue unused": (queue_forgotten, "queue never used"),
    "queue, dim 0": (queue_over_the_batch, "softmax over the batch"),
    "query twice": (queue_positive_of_the_query, "one view twice"),
    "query detached": (query_detached, "no gradient"),
    "z2 detached": (lambda a, b: nt_xent(a, b.detach()), "no gradient reaches z2"),
    "z1 detached": (lambda a, b: nt_xent(a.detach(), b), "no gradient reaches z1"),
    "keys detached": (keys_detached, "no gradient reaches the keys"),
    "numerator detached": (pushed_only, "numerator is detached"),
    "denominator detached": (denominator_detached, "denominator is detached"),
    "half gradient": (half_gradient, "gradient is 0.5 times"),
    "no gradient": (no_gradient, "no gradient"),
    "anchor among mates": (supcon_with_the_anchor, "anchor itself is a second positive"),
    "siglip mean": (siglip_over_all_pairs, "mean taken twice"),
    "one fraction": (one_fraction, "one fraction"),
    "whole matrix": (whole_matrix, "one softmax over the whole matrix"),
    "averaged negatives": (mean_of_negatives, "negatives averaged"),
    "misaligned": (misaligned, "misaligned by one sample"),
    "half masked": (half_masked, "(anchors of z2 only)"),
    "stacked labels": (stacked_labels_of_interleaved_views, "views are interleaved"),
    "last key": (last_key_missing, "the last key is missing"),
    "siglip, label 0": (siglip_with_labels(0, 1), "labels 0 in place of -1"),
    "siglip, reversed": (siglip_with_labels(1, -1), "labels reversed"),
    "negatives detached": (negatives_detached, "negatives are detached"),
    "length detached": (length_detached, "length of the rows is detached"),
    "softmax in one direction": (softmax_in_one_direction, "softmax twice"),
    "queue and keys": (queue_asked_by_keys, "compared with the keys"),
    "queue labels": (queue_label_of_rows, "label i in place of 0"),
    "shifted in the stack": (shifted_in_the_stack, "shifted by one in the stack"),
    "1 - p": (positives_as_negatives, "taken for a negative"),
    "no label": (lambda a, b: -_cross(a, b).log_softmax(1).mean(), "no label"),
    "negative margin": (
        lambda a, b: cross_entropy(
            _cross(a, b) + 3 * torch.eye(len(a)), torch.arange(len(a))
        ),
        "margin of -0.3",
    ),
    "mask and sum": (lambda a, b: _terms(a, b, mask=0.0).sum(), "self-mask of 0"),
    "multiplied and no mask": (
        lambda a, b: _terms(a, b, mask=TAU, scale=TAU).mean(),
        "temperature multiplied",
    ),
}  # fmt: skip


# --- Wrong, each found by one general knob: a place, a half, a function of the loss, a number ---


def _halves(first, second):
    labels = torch.arange(len(first))
    return (cross_entropy(first, labels) + cross_entropy(second, labels)) / 2


def flipped_labels_without_transpose(z1, z2):
    logits, labels = _cross(z1, z2), torch.arange(len(z1))
    return (cross_entropy(logits, labels) + cross_entropy(logits, labels.flip(0))) / 2


def joined_along_features(z1, z2):
    a, b = normalize(torch.cat([z1, z2], 1), dim=1).chunk(2, 1)
    return _both(a @ b.T / TAU)


def normalised_over_the_views(z1, z2):
    a, b = normalize(torch.stack([z1, z2]), dim=0)
    return _both(a @ b.T / TAU)


def einsum_over_all_positives(q, k, queue):
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    logits = torch.cat([torch.einsum("nc,mc->n", q, k)[:, None], q @ queue.T], 1) / TAU
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def squared_positive(z1, z2):
    cosines = _cross(z1, z2, 1)
    return ((cosines / TAU).logsumexp(1) - cosines.diagonal().square() / TAU).mean()


def no_mask_and_labels_of_themselves(z1, z2):
    z = normalize(torch.cat([z1, z2]), dim=1)
    return cross_entropy(z @ z.T / TAU, torch.arange(len(z)))


def one_view_by_one_norm(z1, z2):
    return _both(normalize(z1, dim=1) @ (z2 / z2.norm()).T / TAU)


def positives_detached(z1, z2):
    cosines = _cross(z1, z2, 1)
    positive = cosines.diagonal()
    return _both((cosines - torch.diag(positive - positive.detach())) / TAU)


def softmax_then_temperature(z1, z2):
    return cross_entropy(_cross(z1, z2, 1).softmax(1) / TAU, torch.arange(len(z1)))


WRONG |= {
    "flipped labels": (flipped_labels_without_transpose, "in one of two halves"),
    "joined along features": (joined_along_features, "joined along the features"),
    "over the views": (normalised_over_the_views, "normalised over the views"),
    "einsum": (einsum_over_all_positives, "positive summed over all keys"),
    "squared positive": (squared_positive, "cosine squared in the numerator only"),
    "no mask, own labels": (no_mask_and_labels_of_themselves, "the anchor itself"),
    "one norm, z2": (one_view_by_one_norm, "needs its own norm (z2 only)"),
    "positives detached": (positives_detached, "positives are detached"),
    "softmax, then tau": (softmax_then_temperature, "temperature after the softmax"),
    "squared loss": (lambda a, b: _both(_cross(a, b)) ** 2, "loss is squared"),
    "exp of the loss": (lambda a, b: _both(_cross(a, b)).exp(), "exponential of the loss"),
    "L1": (
        lambda a, b: _both(-torch.cdist(normalize(a, dim=1), normalize(b, dim=1), p=1) / TAU),
        "L1 distance",
    ),
    "clamped logits": (lambda a, b: _both(_cross(a, b).clamp(max=5)), "logits clamped at 5"),
    "temperature in one half": (
        lambda a, b: _halves(_cross(a, b), _cross(b, a, 1)), "temperature absent",
    ),
    "diagonal of CLIP": (
        lambda a, b: _both(_cross(a, b).fill_diagonal_(-1e9)), "the positive is masked",
    ),
    "1 in the denominator": (
        lambda a, b: (_cross(a, b).exp().sum(1).add(1).log() - _cross(a, b).diagonal()).mean(),
        "1 is added to the denominator",
    ),
    "no log in the denominator": (
        lambda a, b: (_cross(a, b).exp().sum(1) - _cross(a, b).diagonal()).mean(),
        "no logarithm of the denominator",
    ),
    "sum of three": (lambda a, b: 3 * _terms(a, b).sum(), "sum over"),
}  # fmt: skip
