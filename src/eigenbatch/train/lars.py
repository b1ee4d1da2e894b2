"""LARS, the optimiser of the paper's large batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from eigenbatch.errors import ParameterError


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017), as SimCLR uses it.

    With g = gradient + weight_decay * w, a parameter of a group with `adapt=True` moves by

        m <- momentum m + lr * trust * g,   trust = coefficient ||w|| / ||g||,   w <- w - m

    where trust is 1 if either norm is zero. Groups with `adapt=False` are plain momentum SGD.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        coefficient: float = 0.001,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ParameterError(f"{name} must not be negative, got {value}")
        if not coefficient > 0:
            raise ParameterError(f"coefficient must be positive, got {coefficient}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "coefficient": coefficient,
            "adapt": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad.add(p, alpha=group["weight_decay"])
                if group["adapt"]:
                    update = update * _trust(p, update, group["coefficient"])
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                p.sub_(state["momentum"])
        return loss


def _trust(weight: Tensor, update: Tensor, coefficient: float) -> Tensor:
    """The ratio coefficient ||w|| / ||g||, or 1 where one of them vanishes; no synchronisation."""
    w, g = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update)
    return torch.where((w > 0) & (g > 0), coefficient * w / g, 1.0)
