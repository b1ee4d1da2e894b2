"""Measurements behind docs/benchmarks.md: ratios of things timed alternately in one run."""
