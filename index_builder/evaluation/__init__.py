"""Measures a bundle on a test split."""
