"""Measurements against peers, in one run on one machine."""
