"""Offline training: a dataset becomes an encoder checkpoint and a memory of keys and values."""
