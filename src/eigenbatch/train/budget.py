"""How long a run trains, and in which precision."""

from dataclasses import dataclass
from typing import Annotated, Literal

from eigenbatch.train.settings import Config, Range

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(Config):
    """Epochs and precision.

    Args:
        epochs: passes over the data; may be raised when a run is resumed.
        precision: "auto" is bf16-mixed where the hardware has instructions for it.
    """

    epochs: Annotated[int, Range(1, 10**6)] = 20
    precision: Precision = "32-true"

    def resolved_precision(self) -> Literal["32-true", "bf16-mixed", "16-mixed"]:
        """The precision that "auto" stands for on this machine."""
        return fastest_precision() if self.precision == "auto" else self.precision


def fastest_precision() -> Literal["32-true", "bf16-mixed"]:
    """bf16-mixed where the processor or GPU has instructions for it; elsewhere it is far slower."""
    import torch

    if torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    supported = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    supported = supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bf16-mixed" if supported else "32-true"
