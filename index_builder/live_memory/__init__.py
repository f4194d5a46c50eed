"""Publish a bundle with the entries of a live memory."""
