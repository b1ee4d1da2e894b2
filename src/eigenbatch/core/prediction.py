"""What if: ceilings on the mean squared anchor gradient under a change that was not made.

Letters: a_i log-odds of missing, b = 1 / tau, s+ positive similarity, q softmax over negatives.

Another temperature. a(b) = logsumexp_j(b s_j) - b s+ is convex in b with a(0) = log N-, and
logsumexp(b s) / b falls with b. So for b' < b the chord to b = 0 lies above, and for b' > b

    a(b') <= a(b) + (b' - b) min{a(b) / b, 1 - s+}.

||q||^2 grows with b, so that at a higher temperature ||m||^2 <= lambda_1 ||q||^2 still holds with
the present q, and (1 + ||m||)^2 bounds the geometry. Nothing is assumed, unless lambda_1 comes
from a sample of the candidates.

Another number of negatives, drawn like the present ones: their softmax mass grows in proportion,
a' = a + log(N' / N-), and N sigma ||q||^2 stays.

Whitening makes every eigenvalue w = lambda / (lambda + eps) before the trace is divided out, so
the cloud is isotropic on R = (sum w)^2 / sum w^2 directions and its similarities have variance
1 / R. For Gaussian logits N- ||q||^2 = exp(1 / (R tau^2)). The miss is taken as 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, whole
from eigenbatch.core.contrast import Contrast, accumulated, positive_scalar
from eigenbatch.core.infonce import InfoNCE, infonce
from eigenbatch.core.spectrum import Spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The mean squared anchor gradient after a change that was not made.

    Args:
        change: what is changed, in words.
        ceiling: an upper bound, or with `exact` the value.
        assumes: what the bound assumes, in words.
        exact: whether the value was computed and not bounded.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> reading = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z)
        >>> reading.outlook.at_tau(0.2).change
        'tau 0.1 -> 0.2'
    """

    change: str
    ceiling: float
    assumes: str
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """What predictions need to remember of a batch: a few numbers per anchor, no embeddings.

    Args:
        tau: softmax temperature of the batch.
        negative_count: N-, negatives per anchor.
        log_odds: (n,) log-odds of missing the positive.
        positive_similarity: (n,) `<z_i, z_i+>`.
        confusion: (n,) `<m_i, z_i+>`.
        concentration: (n,) ||q_i||^2.
        eigenvalues: (d,) of the candidates, trace one.
        top: lambda_1 of the candidates' sum of outer products.
        candidates: number of candidates.
        sampled: candidates behind `eigenvalues` and `top`, all of them or some.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> outlook = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z).outlook
        >>> outlook.with_negatives(254).ceiling > outlook.with_negatives(126).ceiling
        True
    """

    tau: float
    negative_count: int
    log_odds: Tensor
    positive_similarity: Tensor
    confusion: Tensor
    concentration: Tensor
    eigenvalues: Tensor
    top: float
    candidates: int
    sampled: int

    def gathered(self, concatenated: Callable[[Tensor], Tensor]) -> Self:
        """The outlook of several processes; `concatenated` stacks the rows (n, k) of all."""
        check_callable(concatenated, "concatenated", "torch.cat over processes")
        columns = (self.log_odds, self.positive_similarity, self.confusion, self.concentration)
        odds, similarity, confusion, concentration = concatenated(torch.stack(columns, 1)).unbind(1)
        return replace(
            self,
            log_odds=odds,
            positive_similarity=similarity,
            confusion=confusion,
            concentration=concentration,
        )

    def at_tau(self, tau: float) -> Prediction:
        """The ceiling at another temperature, same embeddings."""
        new = positive_scalar(tau, "tau")
        before, after = 1 / self.tau, 1 / new
        if after <= before:
            share = after / before
            odds = share * self.log_odds + (1 - share) * math.log(self.negative_count)
            norm = (self.top * self.concentration).clamp(max=1).sqrt()  # (n,)
            assumed = self._sampling
        else:
            slope = torch.minimum(self.log_odds * self.tau, 1 - self.positive_similarity)
            odds = self.log_odds + (after - before) * slope
            norm = torch.ones_like(odds)
            assumed = ()
        ceiling = (torch.sigmoid(odds) / new * (1 + norm)).square().mean().item()
        return Prediction(
            change=f"tau {self.tau:g} -> {new:g}",
            ceiling=ceiling,
            assumes=", ".join(assumed) or "nothing, for this batch",
        )

    def with_negatives(self, count: int) -> Prediction:
        """The ceiling with `count` negatives per anchor (2 B - 2 for NT-Xent on B images)."""
        whole(count, "count", least=1)
        odds = self.log_odds + math.log(count / self.negative_count)
        norm = (self.top * self.concentration).clamp(max=1)  # (n,) ||m||^2
        geometry = 1 - 2 * self.confusion + norm
        ceiling = ((torch.sigmoid(odds) / self.tau).square() * geometry).mean().item()
        return Prediction(
            change=f"negatives {self.negative_count} -> {count}",
            ceiling=ceiling,
            assumes=", ".join(("negatives of the same kind", *self._sampling)),
        )

    def whitened(self, *, eps: float = 1e-5) -> Prediction:
        """The ceiling after `whiten(z, eps=eps)`, whatever the positives then look like."""
        kept = self.eigenvalues / (self.eigenvalues + positive_scalar(eps, "eps"))  # (d,)
        share = kept / kept.sum()
        directions = 1 / share.square().sum().item()
        spread = min(1 / (directions * self.tau**2), math.log(self.negative_count))
        norm = min(1.0, share.max().item() * math.exp(spread))
        return Prediction(
            change=f"whitened to {directions:.0f} equal directions",
            ceiling=((1 + math.sqrt(norm)) / self.tau) ** 2,
            assumes=", ".join(("normal similarities", *self._sampling)),
        )

    @property
    def _sampling(self) -> tuple[str, ...]:
        """What a ceiling assumes that uses the spectrum."""
        if self.sampled >= self.candidates:
            return ()
        return (f"{self.sampled} sampled keys have the spectrum of all {self.candidates}",)


@torch.no_grad()
def outlook(contrast: Contrast, values: InfoNCE, cloud: Spectrum) -> Outlook:
    """Remember what predictions need; on the CPU, so that no accelerator memory is kept.

    `cloud` is the spectrum of the candidates or of a sample of them.
    """
    positive = (contrast.anchors * values.positives).sum(1)  # (n,)
    return Outlook(
        tau=values.tau,
        negative_count=contrast.negative_count,
        log_odds=accumulated(values.log_odds).cpu(),
        positive_similarity=accumulated(positive).cpu(),
        confusion=accumulated(values.confusion).cpu(),
        concentration=1 / accumulated(values.effective_negatives).cpu(),
        eigenvalues=cloud.eigenvalues.cpu(),
        top=len(contrast.candidates) * cloud.top,
        candidates=len(contrast.candidates),
        sampled=cloud.count,
    )


def at_other_tau(contrast: Contrast, tau: float, other: float) -> Prediction:
    """The exact mean squared anchor gradient of the same embeddings at another temperature."""
    value = accumulated(infonce(contrast, other).squared_gradient).mean().item()
    return Prediction(
        change=f"tau {tau:g} -> {other:g}",
        ceiling=value,
        assumes="nothing: computed from the embeddings",
        exact=True,
    )
