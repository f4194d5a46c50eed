"""RAE-XMC, Equation 11: a one-versus-all classifier gains from the votes of instances (OvA + kNN).

    p(l | x) = lambda p_kNN(l | x) + (1 - lambda) sigmoid(s(x, l) / tau)

p_kNN is the vote of the instances alone (Eq. 8). The classifier and the votes are normalised separately, so this is not
the one softmax over all keys that the memory has (Eq. 7), and it is measured here only: the service answers with Eq. 7.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy import sparse

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.small_runs import draw_sample
from recollect.trainer.memory.memory import DEFAULTS, open_memory
from recollect.trainer.memory.search import nearest
from recollect.trainer.methods import METHODS
from recollect.trainer.metrics import hits, precision_at

_LAMBDA = 0.5


def measure_ova(folder: Path | None, work: Path, seed: int) -> Figures:
    sample = draw_sample(folder, work)
    run = sample.train("ova", seed, method="ova")
    memory, queries = open_memory(run / "memory"), sample.queries(seed)
    vectors, truth = queries.vectors(run, "cpu"), queries.truth
    votes = knn_votes(vectors, memory.instance_keys, memory.label_sets.to_csr(memory.plan.labels))
    classified = sigmoid(vectors @ memory.label_keys(0.0).filled().T, METHODS["ova"].temperature or 1.0)
    scores = {"OvA": classified, "kNN": votes, "OvA + kNN": mixed(votes, classified, _LAMBDA)}
    return {
        name: 100 * float(precision_at(hits(each.argmax(axis=1)[:, None], truth), 1).mean())
        for name, each in scores.items()
    }


def knn_votes(
    queries: Float[np.ndarray, "query dim"], instances: Float[np.ndarray, "instance dim"], values: sparse.csr_matrix
) -> Float[np.ndarray, "query label"]:
    """The votes of the b nearest instances (RAE-XMC, Eq. 8)."""
    similarities, rows = nearest(queries, instances, int(DEFAULTS["top_b"]))
    weights = np.exp((similarities - similarities[:, :1]) / DEFAULTS["temperature"])
    weights /= weights.sum(axis=1, keepdims=True)
    starts = np.arange(0, rows.size + 1, rows.shape[1])
    by_key = sparse.csr_matrix((weights.ravel(), rows.ravel(), starts), shape=(len(queries), len(instances)))
    return np.asarray((by_key @ values).todense())


def sigmoid(similarities: Float[np.ndarray, "query label"], temperature: float) -> Float[np.ndarray, "query label"]:
    """The probabilities of a one-versus-all classifier."""
    return np.asarray(1 / (1 + np.exp(-similarities / temperature)))


def mixed(
    votes: Float[np.ndarray, "query label"], classified: Float[np.ndarray, "query label"], lambda_: float
) -> Float[np.ndarray, "query label"]:
    """The mixture of votes and classifier."""
    return lambda_ * votes + (1 - lambda_) * classified
