"""Thin adapters to other packages; optional dependencies are imported only here."""
