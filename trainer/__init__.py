"""Offline training: makes an encoder checkpoint and a memory of keys and values from a dataset."""
