"""A finding: its name, how bad it is, the numbers behind it and what to do."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One named finding.

    Args:
        name: name of the finding, see docs/diagnosis.md.
        severity: "info", "warning" or "critical".
        evidence: the numbers behind it and their thresholds.
        advice: what to do.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.ones(64, 16)  # collapsed: every row is the same
        >>> [finding] = [
        ...     one
        ...     for one in SpectralMonitor(tau=0.1, every=1, quiet=True)(z, z).diagnoses
        ...     if one.name == "collapsing"
        ... ]
        >>> finding.severity in ("info", "warning", "critical")
        True
    """

    name: str
    severity: Severity
    evidence: str
    advice: str
