"""Ending a run on a chosen finding."""

from eigenbatch.checks import check_type, whole
from eigenbatch.errors import ParameterError
from eigenbatch.monitor.diagnose import NAMES
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.rules import RULES


class StopOn:
    """True once one of the named findings was made in `patience` readings in a row.

    Severity "info" does not count: an untrained encoder is not a reason to stop.

    Args:
        *names: names of findings that can be warnings, see docs/diagnosis.md; "not finite" is NaN.
        patience: readings in a row.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor, StopOn
        >>> monitor, stop = SpectralMonitor(0.1, every=1, quiet=True), StopOn("not finite")
        >>> z = torch.full((8, 4), torch.nan)
        >>> stop(monitor(z, z)), stop(monitor(z, z))
        (False, True)
        >>> stop.reasons
        ('not finite',)
    """

    def __init__(self, *names: str, patience: int = 2) -> None:
        for name in names:
            check_type(name, str, "names")
        whole(patience, "patience")
        if unknown := sorted(set(names) - set(NAMES)):
            raise ParameterError(f"no finding is called {unknown}; the names are {NAMES}")
        if "healthy" in names:
            raise ParameterError('"healthy" is said where nothing is wrong: it cannot stop a run')
        if remarks := [rule.name for rule in RULES if rule.remark and rule.name in names]:
            raise ParameterError(f"{remarks} are remarks, never warnings: they cannot stop a run")
        if not names or patience < 1:
            raise ParameterError(
                f"name at least one finding and a patience of at least 1, got {names}, {patience}"
            )
        self._patience = patience
        self._seen = dict.fromkeys(names, 0)
        self._reason = ""

    def __call__(self, reading: Reading | None) -> bool:
        """Whether to stop now; skipped steps (None) change nothing."""
        check_type(reading, (Reading, type(None)), "reading")
        if reading is None:
            return False
        found = {one.name for one in reading.diagnoses if one.severity != "info"}
        self._seen = {name: seen + 1 if name in found else 0 for name, seen in self._seen.items()}
        if self.reasons:
            evidence = "; ".join(
                f"{one.name} ({one.evidence})"
                for one in reading.diagnoses
                if one.name in self.reasons
            )
            self._reason = f"{evidence} at step {reading.step}"
        return bool(self.reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the findings that are a reason to stop."""
        return tuple(name for name, seen in self._seen.items() if seen >= self._patience)

    @property
    def reason(self) -> str:
        """Why to stop, as a text for the record of the run; empty while there is no reason.

        if stop(reading):
            recorder.stop(stop.reason)
            break
        """
        return self._reason
