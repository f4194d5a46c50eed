"""What the papers prove on small ground, proven again with this code: `python -m benchmarks.proofs NAME`."""
