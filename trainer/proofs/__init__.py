"""What the papers prove on small ground, proven again with this code: `python -m trainer.proofs NAME`."""
