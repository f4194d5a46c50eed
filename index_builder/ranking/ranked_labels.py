"""The labels of new texts in the order of a memory's ranker, by exact search, without a bundle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.ranking.bundle_ranker import needs_words
from recollect.index_builder.ranking.candidate_source import CandidateSource
from recollect.index_builder.ranking.gains import best_candidates
from recollect.service.ranking.model import RankerFile, RankerModel
from recollect.trainer.memory.memory import Memory
from recollect.trainer.progress_bar import progress_bar


def ranked_labels(
    memory: Memory,
    ranker: RankerFile,
    texts: Sequence[str],
    vectors: Float[np.ndarray, "query dim"],
    filtered: sparse.csr_matrix,
) -> Int[np.ndarray, "query 100"]:
    """The best 100 labels of each text in the order of a ranker; -1 pads short lists.

    Args:
        memory: The memory for which the ranker was fitted.
        ranker: The ranker.
        texts: The queries.
        vectors: Their vectors.
        filtered: The labels that are removed from the answers, with the axes (query, label).
    """
    model, source = RankerModel(ranker), CandidateSource(memory, needs_words(ranker))
    columns = [source.features.index(name) for name in model.features]
    none, best = np.empty(0, dtype=np.int64), []
    with progress_bar(len(texts), "query", "rank") as bar:
        for block in source.find(texts, vectors, none):
            query, label = block.candidates.query, block.candidates.label
            kept = np.asarray(filtered[query + block.first, label]).ravel() == 0
            logits = model.logits(block.features[kept][:, columns])
            best.append(pick(label[kept], best_candidates(query[kept], logits, block.queries), -1))
            bar.update(block.queries)
    return np.concatenate(best)
