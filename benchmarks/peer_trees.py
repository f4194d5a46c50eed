"""A tree-based peer in one process: TF-IDF features with PECOS XR-Linear or Omikuji's Bonsai.

`benchmarks.peers` runs this program with the Python of the peers' own environment, which lacks recollect. It prints one
JSON object: the labels found for each test text, and the cost.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

_THREADS, _BEAM, _BATCH = 2, 20, 64

# Returns the positions of the best labels of each text, best first.
Answer = Callable[[list[str]], list[list[int]]]


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def pecos(features: TfidfVectorizer, x: sp.csr_matrix, y: sp.csr_matrix, top: int) -> Answer:
    """Train PECOS XR-Linear with its defaults."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    embedding = LabelEmbeddingFactory.create(y, x, method="pifa")
    clusters = Indexer.gen(embedding, indexer_type="hierarchicalkmeans", threads=_THREADS)
    model = XLinearModel.train(x, y, C=clusters, threads=_THREADS)

    def answer(texts: list[str]) -> list[list[int]]:
        rows = model.predict(features.transform(texts), beam_size=_BEAM, only_topk=top, threads=1).tocsr()
        found = []
        for start, stop in zip(rows.indptr, rows.indptr[1:], strict=False):
            order = np.argsort(-rows.data[start:stop], kind="stable")
            found.append(rows.indices[start:stop][order].tolist())
        return found

    return answer


def bonsai(features: TfidfVectorizer, x: sp.csr_matrix, y: sp.csr_matrix, top: int) -> Answer:
    """Train three trees of Omikuji with Bonsai's shallow, wide clusters."""
    import omikuji

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{x.shape[0]} {x.shape[1]} {y.shape[1]}\n")
        for row, labels in zip(x, y, strict=True):
            # Omikuji refuses a row without features.
            words = " ".join(f"{word}:{value:.5f}" for word, value in zip(row.indices, row.data, strict=True))
            file.write(f"{','.join(map(str, labels.indices))} {words or '0:0.00001'}\n")
        file.flush()
        settings = omikuji.Model.default_hyper_param()
        settings.cluster_balanced, settings.cluster_k, settings.max_depth = False, 100, 3
        model = omikuji.Model.train_on_data(file.name, hyper_param=settings, n_threads=_THREADS)

    def answer(texts: list[str]) -> list[list[int]]:
        rows = features.transform(texts)
        pairs = (zip(row.indices.tolist(), row.data.tolist(), strict=True) for row in rows)
        return [[label for label, _ in model.predict(list(each), top_k=top)] for each in pairs]

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("peer", choices=["pecos", "bonsai"])
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--top", type=int, required=True)
    options = parser.parse_args()

    train, labels = read(options.dataset / "train.jsonl.gz"), read(options.dataset / "labels.jsonl.gz")
    texts = [row["text"] for row in read(options.dataset / "test.jsonl.gz")[: options.limit]]
    offsets = np.cumsum([0, *(len(row["labels"]) for row in train)])
    positions = np.array([label for row in train for label in row["labels"]])
    y = sp.csr_matrix((np.ones(len(positions), np.float32), positions, offsets), shape=(len(train), len(labels)))

    start = time.perf_counter()
    features = TfidfVectorizer(ngram_range=(1, 2), dtype=np.float32, sublinear_tf=True, max_features=2_000_000)
    x = features.fit_transform([row["text"] for row in train])
    answer = {"pecos": pecos, "bonsai": bonsai}[options.peer](features, x, y, options.top)
    train_seconds = time.perf_counter() - start

    found, seconds = [], []
    for text in texts:
        start = time.perf_counter()
        found += answer([text])
        seconds.append(time.perf_counter() - start)

    batches = [texts[first : first + _BATCH] for first in range(0, len(texts), _BATCH)]
    start, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(answer, batches))
    print(
        json.dumps(
            {
                "found": found,
                "train_seconds": train_seconds,
                "p50_ms": 1e3 * statistics.median(seconds),
                "per_second": len(texts) / (time.perf_counter() - start),
                "cpu_ms": 1e3 * (time.process_time() - cpu) / len(texts),
                "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
