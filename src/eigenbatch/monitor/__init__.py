"""Readings, findings, the monitor that makes them, and the loss checker."""

from eigenbatch.monitor.check import LossReport, check_loss
from eigenbatch.monitor.findings import Finding
from eigenbatch.monitor.measure import read_batch
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.monitor.online_probe import OnlineProbe
from eigenbatch.monitor.reading import LOGGED, Reading

__all__ = [
    "LOGGED", "Finding", "LossReport", "OnlineProbe", "Reading", "SpectralMonitor", "StopOn",
    "check_loss", "read_batch",
]  # fmt: skip
