"""Proof before publishing: what a bundle must reach, measured through the code that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float

from index_builder.recall import exact_neighbours
from service.golden import GoldenQuery
from service.manifest import Check
from service.scoring import Values, cast_votes, rank
from service.searcher import Neighbours, merge, unwrapped
from trainer.memory import Memory

_GOLDEN_LABELS = 10


def check(name: str, found: float, *, least: float | None = None, most: float | None = None) -> Check:
    """Hold a measurement against the least or the most that it may be; a NaN fails both."""
    passed = (least is None or found >= least) and (most is None or found <= most)
    return Check(name=name, found=found if np.isfinite(found) else None, least=least, most=most, passed=passed)


def table(checks: list[Check]) -> Iterator[str]:
    """The checks as aligned lines, the failed ones marked."""
    width = max(len(each.name) for each in checks)
    for each in checks:
        bounds = [f">= {each.least:.6g}"] * (each.least is not None) + [f"<= {each.most:.6g}"] * (each.most is not None)
        found = "-" if each.found is None else f"{each.found:.6g}"
        verdict = "ok" if each.passed else "FAILED"
        yield f"{each.name:{width}}  {found:>10}  {' and '.join(bounds) or 'told':14}  {verdict}"


def golden_queries(
    memory: Memory, texts: list[str], vectors: Float[np.ndarray, "text dim"]
) -> list[GoldenQuery]:
    """Queries with the labels that exact search over the memory gives them, by its own defaults.

    Args:
        memory: Whose keys, values and defaults answer.
        texts: Queries.
        vectors: Theirs, by the trained encoder.
    """
    defaults, instances = memory.defaults, memory.plan.instances
    lambda_, top_b = defaults["lambda"], int(defaults["top_b"])
    labels = exact_neighbours(memory.label_keys(), vectors, top_b)
    found = Neighbours(labels.similarities, labels.keys + instances)
    if lambda_ > 0:
        own = exact_neighbours(memory.instance_keys, vectors, top_b)
        found = own if lambda_ == 1 else merge(own, found, top_b)
    values = Values(memory.value_indptr, memory.value_indices, memory.plan.labels)
    ranking = rank(cast_votes(found, defaults["temperature"], lambda_, values), values)
    uids = memory.label_uids()
    rows = np.searchsorted(ranking.query, np.arange(len(texts) + 1))
    return [
        GoldenQuery(query=text, labels=[uids[label] for label in ranking.label[start:stop][:_GOLDEN_LABELS]])
        for text, start, stop in zip(texts, rows[:-1], rows[1:], strict=True)
        if stop > start
    ]


def reachable(index: Any) -> float:
    """Share of the keys that a walk over a graph's lowest level can come to from its entry; 1 for other indexes."""
    graph = unwrapped(index)
    if not isinstance(graph, faiss.IndexHNSW):
        return 1.0
    hnsw = graph.hnsw
    offsets, links = faiss.vector_to_array(hnsw.offsets), hnsw.nb_neighbors(0)
    neighbours = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
    seen = np.zeros(graph.ntotal, dtype=bool)
    frontier = np.array([hnsw.entry_point])
    while len(frontier):
        seen[frontier] = True
        linked = np.unique(neighbours[offsets[frontier][:, None] + np.arange(links)])
        frontier = linked[(linked >= 0) & ~seen[linked]]
    return float(seen.mean())
