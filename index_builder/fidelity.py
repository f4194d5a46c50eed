"""What a bundle's precision and its indexes cost in quality, measured on texts of its own memory, each left out.

Some instances are asked as queries, none finding its own key (label keys that are mixed with instances keep their share
of it, before and after alike): first the trained encoder's vectors by exact search, then the exported encoder's, then
these through the bundle's indexes. What is lost between is lost to the one or the other. How good the answers are on
texts that nobody has seen, `recollect evaluate` tells.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float, Int

from index_builder.choose_index import spread
from index_builder.evaluate import best_labels
from index_builder.onnx_export import cosines
from index_builder.recall import exact_neighbours
from service.predictor.predictor import Predictor
from service.predictor.scoring import cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from trainer.memory import Memory
from trainer.metrics import hits, precision_at, recall_at

METRICS = ("P@1", "P@5", "R@100")
_MOST_QUERIES = 512


def quality_changes(memory: Memory, predictor: Predictor) -> dict[str, float]:
    """Points of each metric that are won (or lost, below 0) to the encoder's precision, and to the indexes.

    With them, the exported encoder's cosines to the trained one, on these texts.

    Args:
        memory: What the bundle was built from.
        predictor: The bundle, opened.
    """
    defaults, rows = predictor.manifest.defaults, spread(memory.plan.instances, _MOST_QUERIES)
    kept = np.asarray(memory.keys[rows], dtype=np.float32)
    served = predictor.encode([predictor.bundle.instance_texts[row] for row in rows.tolist()])
    wanted = defaults.top_b + 1
    exact = exact_search(memory, np.concatenate([kept, served]), wanted, defaults.lambda_)
    trained, exported = (
        Neighbours(exact.similarities[half], exact.keys[half]) for half in (slice(0, len(rows)), slice(len(rows), None))
    )
    indexed = predictor.searcher.search(served, wanted, defaults.lambda_)
    before, between, after = (_quality(memory, predictor, rows, found) for found in (trained, exported, indexed))
    parity = cosines(kept, served)
    changes = {"left_out_mean_cosine": float(parity.mean()), "left_out_worst_cosine": float(parity.min())}
    changes |= {f"{metric}_change_precision": between[metric] - before[metric] for metric in METRICS}
    return changes | {f"{metric}_change_index": after[metric] - between[metric] for metric in METRICS}


def exact_search(memory: Memory, vectors: Float[np.ndarray, "query dim"], top_b: int, lambda_: float) -> Neighbours:
    """The top-b keys of the part of a memory that lambda gives a vote, by brute force."""
    search_instances = functools.partial(exact_neighbours, memory.instance_keys)
    search_labels = functools.partial(exact_neighbours, memory.label_keys())
    return search_parts(search_instances, search_labels, memory.plan.instances, vectors, top_b, lambda_)


def _quality(
    memory: Memory, predictor: Predictor, rows: Int[np.ndarray, " query"], found: Neighbours
) -> dict[str, float]:
    """The metrics of what was found, but for each query's own key; in percent."""
    defaults, values = predictor.manifest.defaults, predictor.values
    own = found.keys == rows[:, None]
    similarities, keys = np.where(own, -np.inf, found.similarities), np.where(own, -1, found.keys)
    order = np.argsort(own, axis=1, kind="stable")[:, : defaults.top_b]  # the own key last, if it was found at all
    others = Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
    ranking = rank(cast_votes(others, defaults.temperature, defaults.lambda_, values), values)
    truth = memory.label_sets.to_csr(values.labels)[rows]
    hit = hits(best_labels(ranking.query, ranking.label, len(rows)), truth)
    fractions = (precision_at(hit, 1), precision_at(hit, 5), recall_at(hit, np.diff(truth.indptr), 100))
    return {metric: 100 * float(each.mean()) for metric, each in zip(METRICS, fractions, strict=True)}
