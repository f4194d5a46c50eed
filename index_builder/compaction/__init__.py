"""Compaction: a bundle with fewer or smaller keys than the memory of its run."""
