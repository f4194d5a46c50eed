"""Fidelity of a bundle: the change of quality from the encoder's precision and from the indexes.

Some instances of the memory are queries, and each query's own key is left out of its answer. (A label key that is mixed
with instances keeps its share of the query in all three measurements.) The queries are answered three times: with the
trained encoder and exact search, with the exported encoder and exact search, and with the exported encoder and the
bundle's indexes. The first difference is the effect of the precision, the second is the effect of the indexes.
`recollect evaluate` measures the quality on new texts.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float, Int

from index_builder.choose_index import evenly_spaced_rows
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
    """Measure the change of each metric from the encoder's precision and from the indexes, in points.

    The result also holds the mean and the worst cosine between the exported and the trained encoder on these texts.

    Args:
        memory: The memory of the bundle.
        predictor: The opened bundle.
    """
    defaults, rows = predictor.manifest.defaults, evenly_spaced_rows(memory.plan.instances, _MOST_QUERIES)
    trained = np.asarray(memory.keys[rows], dtype=np.float32)
    exported = predictor.encode([predictor.bundle.instance_texts[row] for row in rows.tolist()])
    wanted = defaults.top_b + 1
    exact = exact_search(memory, np.concatenate([trained, exported]), wanted, defaults.lambda_)
    exact_trained, exact_exported = (
        Neighbours(exact.similarities[half], exact.keys[half]) for half in (slice(0, len(rows)), slice(len(rows), None))
    )
    indexed = predictor.searcher.search(exported, wanted, defaults.lambda_)
    before, between, after = (
        _quality(memory, predictor, rows, found) for found in (exact_trained, exact_exported, indexed)
    )
    parity = cosines(trained, exported)
    changes = {"left_out_mean_cosine": float(parity.mean()), "left_out_worst_cosine": float(parity.min())}
    changes |= {f"{metric}_change_precision": between[metric] - before[metric] for metric in METRICS}
    return changes | {f"{metric}_change_index": after[metric] - between[metric] for metric in METRICS}


def exact_search(memory: Memory, vectors: Float[np.ndarray, "query dim"], top_b: int, lambda_: float) -> Neighbours:
    """Find the top-b keys by exact search, in the parts of the memory that vote at this lambda."""
    search_instances = functools.partial(exact_neighbours, memory.instance_keys)
    search_labels = functools.partial(exact_neighbours, memory.label_keys())
    return search_parts(search_instances, search_labels, memory.plan.instances, vectors, top_b, lambda_)


def _quality(
    memory: Memory, predictor: Predictor, rows: Int[np.ndarray, " query"], found: Neighbours
) -> dict[str, float]:
    """Metrics of the found keys without each query's own key, in percent."""
    defaults, values = predictor.manifest.defaults, predictor.values
    own = found.keys == rows[:, None]
    similarities, keys = np.where(own, -np.inf, found.similarities), np.where(own, -1, found.keys)
    order = np.argsort(own, axis=1, kind="stable")[:, : defaults.top_b]  # the own key last, if it was found
    others = Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
    ranking = rank(cast_votes(others, defaults.temperature, defaults.lambda_, values), values)
    truth = memory.label_sets.to_csr(values.labels)[rows]
    hit = hits(best_labels(ranking.query, ranking.label, len(rows)), truth)
    fractions = (precision_at(hit, 1), precision_at(hit, 5), recall_at(hit, np.diff(truth.indptr), 100))
    return {metric: 100 * float(each.mean()) for metric, each in zip(METRICS, fractions, strict=True)}
