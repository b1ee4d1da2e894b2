"""A diagnosis: its name, how bad it is, the numbers behind it and what to do."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One named finding; `evidence` holds the numbers and their thresholds."""

    name: str
    severity: Severity
    evidence: str
    advice: str
