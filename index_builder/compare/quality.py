"""How well a run answers the test queries, by exact search over its memory: no bundle is needed.

As it was tuned, at each lambda, and by the label keys alone (lambda and alpha 0), as a dual encoder answers.
What was measured is kept beside the run in `quality.json`, under a digest of all that decides it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

from index_builder.compare.queries import Queries
from trainer.files import write_json
from trainer.inference import InferenceSetting, Neighbours, predict
from trainer.memory import Memory, open_memory
from trainer.metrics import hits, ndcg_at, precision_at, report
from trainer.search import nearest

# As far as the metrics look: R@100, and the five that are told query by query.
DEPTH, _TOP = 100, 5
# Lambdas of the curve, besides the tuned one.
_LAMBDAS = tuple(round(0.1 * step, 1) for step in range(11))
_BLOCK_QUERIES = 8_192
# Of what is kept: another release may measure otherwise.
_FORMAT_VERSION = 1

Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Quality:
    """What was measured, in percent.

    Attributes:
        answering: The tuned lambda, temperature, top_b and label_key_alpha.
        tuned: Every metric, answered with these.
        plain: Every metric, answered by the label keys alone.
        curve: For each lambda P@1 and nDCG@5, answered with the tuned temperature, top_b and alpha.
        hits: Which of a query's five best labels are true, as answered with the tuned settings: a bit each.
    """

    answering: dict[str, float]
    tuned: Metrics
    plain: Metrics
    curve: list[dict[str, float]]
    hits: list[int]

    def scores(self, sizes: Int[np.ndarray, " query"]) -> dict[str, Float[np.ndarray, " query"]]:
        """P@1, P@3, P@5 and nDCG@5 of every query, as fractions.

        Args:
            sizes: True labels of each query.
        """
        bits = np.array(self.hits, dtype=np.uint8)[:, None]
        hit = np.unpackbits(bits, axis=1, count=_TOP).astype(bool)
        return {f"P@{k}": precision_at(hit, k) for k in (1, 3, _TOP)} | {f"nDCG@{_TOP}": ndcg_at(hit, sizes, _TOP)}


def measure(run: Path, queries: Queries, device: str) -> Quality:
    """Measure a run on the test queries, unless that is done.

    Args:
        run: Its folder, with checkpoint and memory.
        queries: What is asked.
        device: Where to encode and search.

    Raises:
        MemoryFolderError, EncoderError: If the run cannot be opened.
    """
    memory, kept = open_memory(run / "memory"), run / "quality.json"
    digest = _digest(memory, queries)
    found = _read(kept, digest)
    if found is None:
        found = _measure(memory, queries, queries.vectors(run / "checkpoint", device), device)
        write_json(kept, {"digest": digest, **vars(found)})
    return found


def _measure(memory: Memory, queries: Queries, vectors: Float[np.ndarray, "query width"], device: str) -> Quality:
    defaults = memory.defaults
    tuned = InferenceSetting(defaults["lambda"], defaults["temperature"], int(defaults["top_b"]))
    curve = [tuned._replace(lambda_=lambda_) for lambda_ in sorted({*_LAMBDAS, tuned.lambda_})]
    depth = DEPTH + queries.most_filtered
    alone = InferenceSetting(0.0, tuned.temperature, depth)
    values, instance_keys = memory.label_sets.to_csr(memory.plan.labels), memory.instance_keys
    label_keys, text_keys = memory.label_keys().filled(), memory.label_keys(0.0).filled()

    best = np.empty((len(queries), DEPTH), dtype=np.int64)
    plain = np.empty_like(best)
    sums = {setting: np.zeros(2) for setting in curve}
    for start in tqdm(range(0, len(queries), _BLOCK_QUERIES), unit="block", desc="measure", dynamic_ncols=True):
        rows = slice(start, min(start + _BLOCK_QUERIES, len(queries)))
        asked, truth, sizes = vectors[rows], queries.truth[rows], queries.sizes[rows]
        instances = Neighbours(*nearest(asked, instance_keys, tuned.top_b, device))
        labels = Neighbours(*nearest(asked, label_keys, tuned.top_b, device))
        for setting, predictions in predict(instances, labels, values, curve, depth):
            admitted = queries.admitted(predictions, start, DEPTH)
            hit = hits(admitted[:, :_TOP], truth)
            sums[setting] += precision_at(hit, 1).sum(), ndcg_at(hit, sizes, _TOP).sum()
            if setting == tuned:
                best[rows] = admitted
        labels = Neighbours(*nearest(asked, text_keys, depth, device))
        for _, predictions in predict(instances, labels, values, [alone], depth):
            plain[rows] = queries.admitted(predictions, start, DEPTH)

    counts = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    of_all = (queries.truth, counts, memory.plan.instances, queries.propensity)
    bits = np.packbits(hits(best[:, :_TOP], queries.truth), axis=1)
    return Quality(
        answering=dict(defaults),
        tuned=report(best, *of_all),
        plain=report(plain, *of_all),
        curve=[
            {"lambda": setting.lambda_, "P@1": 100 * float(first), f"nDCG@{_TOP}": 100 * float(second)}
            for setting, (first, second) in ((setting, total / len(queries)) for setting, total in sums.items())
        ],
        hits=bits[:, 0].tolist(),
    )


def _digest(memory: Memory, queries: Queries) -> str:
    digest = hashlib.sha256((memory.folder / "memory.json").read_bytes())
    digest.update(queries.sha256.encode())
    digest.update(str(_FORMAT_VERSION).encode())
    return digest.hexdigest()


def _read(path: Path, digest: str) -> Quality | None:
    """What was measured before, if it was measured on the same."""
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Quality(**kept) if kept.pop("digest") == digest else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
