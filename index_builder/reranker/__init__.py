"""Fit a ranker and calibrations on held-out texts."""
