"""Datasets: the user's dataset folders in several formats, and the built-in sample dataset."""
