"""Fidelity of a bundle: how much the encoder's precision and the indexes change the quality of its answers.

The queries are some of the memory's instances. Each query's own instance key is left out of its answer. (An enriched
label key still contains the vectors of its instances, so of the query too.) The queries are answered three times:

1. with the trained encoder of queries and exact search;
2. with the exported encoder and exact search: the difference to 1 is the effect of the precision;
3. with the exported encoder and the bundle's indexes: the difference to 2 is the effect of the indexes.

`recollect evaluate` measures the quality on new texts instead.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.index_builder.left_out_votes import remove_filtered
from recollect.index_builder.onnx_export import cosines
from recollect.index_builder.recall import exact_neighbours
from recollect.service.predictor.predictor import Predictor
from recollect.service.predictor.scoring import cast_votes, rank
from recollect.service.predictor.searcher import Neighbours, search_parts
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import hits, precision_at, recall_at

METRICS = ("P@1", "P@5", "R@100")
_MOST_QUERIES = 512


def quality_changes(memory: Memory, predictor: Predictor) -> dict[str, float]:
    """Measure how much the encoder's precision and the indexes change each metric, in percentage points.

    The result also has the mean and the worst cosine between the vectors of the exported and the trained encoder.

    Args:
        memory: The memory of the bundle.
        predictor: The opened bundle.
    """
    defaults, rows = predictor.manifest.defaults, evenly_spaced_rows(memory.plan.instances, _MOST_QUERIES)
    trained = memory.queries(rows)
    exported = predictor.encode(predictor.bundle_memory.instances.texts.take(rows.tolist()))
    wanted = defaults.top_b + 1
    exact = exact_search(memory, np.concatenate([trained, exported]), wanted, defaults.lambda_)
    exact_trained, exact_exported = (
        Neighbours(exact.similarities[half], exact.keys[half]) for half in (slice(0, len(rows)), slice(len(rows), None))
    )
    indexed = predictor.memory.searcher.search(exported, wanted, defaults.lambda_)
    before, between, after = (
        _quality(memory, predictor, rows, found) for found in (exact_trained, exact_exported, indexed)
    )
    parity = cosines(trained, exported)
    changes = {"left_out_mean_cosine": float(parity.mean()), "left_out_worst_cosine": float(parity.min())}
    changes |= {f"{metric}_change_precision": between[metric] - before[metric] for metric in METRICS}
    return changes | {f"{metric}_change_index": after[metric] - between[metric] for metric in METRICS}


def exact_search(memory: Memory, vectors: Float[np.ndarray, "query dim"], top_b: int, lambda_: float) -> Neighbours:
    """Find the top-b keys by exact search. At lambda = 0 only label keys are searched, at 1 only instance keys."""
    search_instances = functools.partial(exact_neighbours, memory.instance_keys)
    search_labels = functools.partial(exact_neighbours, memory.label_keys())
    return search_parts(search_instances, search_labels, memory.plan.instances, vectors, top_b, lambda_)


def _quality(
    memory: Memory, predictor: Predictor, rows: Int[np.ndarray, " query"], found: Neighbours
) -> dict[str, float]:
    """Metrics in percent of the answers from the found keys, with each query's own key left out."""
    defaults, values = predictor.manifest.defaults, predictor.memory.instances.values
    own = found.keys == rows[:, None]
    similarities, keys = np.where(own, -np.inf, found.similarities), np.where(own, -1, found.keys)
    order = np.argsort(own, axis=1, kind="stable")[:, : defaults.top_b]  # the query's own key moves to the end
    others = Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
    ranking = rank(cast_votes(others, defaults.temperature, defaults.lambda_, values), values)
    ranking = remove_filtered(ranking, memory.filtered_labels.to_csr(values.labels)[rows])
    truth = memory.label_sets.to_csr(values.labels)[rows]
    hit = hits(pick(ranking.label, best_rows(ranking.query, len(rows)), -1), truth)
    fractions = (precision_at(hit, 1), precision_at(hit, 5), recall_at(hit, np.diff(truth.indptr), 100))
    return {metric: 100 * float(each.mean()) for metric, each in zip(METRICS, fractions, strict=True)}
