"""Readings, findings and the monitor that makes them; contains no formula."""

from eigenbatch.monitor.diagnosis import Diagnosis
from eigenbatch.monitor.measure import read_batch
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.online_probe import OnlineProbe
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.stopping import StopOn

__all__ = ["Diagnosis", "OnlineProbe", "Reading", "SpectralMonitor", "StopOn", "read_batch"]
