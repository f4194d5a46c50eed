"""Check a bundle before it is published, with the code of the service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.manifest import Check, Manifest, Point, Precision
from recollect.core.golden import GOLDEN, GOLDEN_CHECK, GoldenQuery, agreement, read_golden
from recollect.core.neighbours import Found
from recollect.core.predictor import Predictor
from recollect.core.scoring import vote
from recollect.core.settings import Device
from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.evaluate import default_metrics, learnt_share, open_test
from recollect.index_builder.left_out_votes import default_voting, texts_of
from recollect.index_builder.onnx_export import WORST_COSINE, Sample, cosines
from recollect.index_builder.recall import MIN_REACHABLE, exact_neighbours
from recollect.index_builder.settings import PublishSettings
from recollect.model import open_model
from recollect.store.store import Store
from recollect.trainer.data.dataset import is_table, open_named
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.memory import QUERY_VECTORS, Memory
from recollect.trainer.settings import DatasetSettings

# Number of texts on which the exported and the trained encoder are compared, number of golden queries among these
# texts, and number of golden labels for each query.
_SAMPLE_TEXTS, _GOLDEN_QUERIES, _GOLDEN_LABELS = 256, 32, 10
# Least share of the golden labels that the answers must contain.
_GOLDEN_SHARE: dict[Precision, float] = {"fp32": 0.95, "fp16": 0.95, "int8": 0.85}
# Metrics that the gate compares with the current version.
_GATED = ("P@1", "P@5", "nDCG@5", "R@100")
# Largest share of the texts of a table, in the gate, that the memory may have.
_MOST_LEARNT = 0.5


def encode_sample(memory: Memory, encoder: Encoder, query_encoder: Encoder) -> Sample:
    """Encode some of the memory's texts as queries, and compare the vectors of these texts with those in the memory.

    Raises:
        BuildError: If a stored vector differs, so that another encoder must have computed it.
    """
    rows = evenly_spaced_rows(memory.plan.instances, _SAMPLE_TEXTS)
    texts = texts_of(memory, rows)
    if len(texts) < len(rows):
        raise BuildError(
            f"{memory.folder}/instances.jsonl: expected {memory.plan.instances:,} lines, found fewer; "
            "encode the memory again with `recollect train --overwrite`"
        )
    keys = np.asarray(memory.instance_keys[rows], dtype=np.float32)
    exact = encoder.served is None and memory.plan.precision == "fp32"
    vectors = _encode_and_compare(encoder, texts, keys, rows, memory.folder / "keys.npy", exact)
    if query_encoder is not encoder:
        path = memory.folder / QUERY_VECTORS
        vectors = _encode_and_compare(query_encoder, texts, memory.queries(rows), rows, path, exact=True)
    return Sample(texts, vectors)


def _encode_and_compare(
    encoder: Encoder,
    texts: list[str],
    stored: Float[np.ndarray, "row dim"],
    rows: Int[np.ndarray, " row"],
    path: Path,
    exact: bool,
) -> Float[np.ndarray, "row dim"]:
    """Encode texts, and compare the result with the vectors that the memory stores in their rows.

    Args:
        exact: Whether the stored vectors are in fp32. Those of a server vary with its batches.
    """
    vectors = encoder.encode(texts, encoder.config.max_length)
    with np.errstate(invalid="ignore", divide="ignore"):  # the comparison below rejects keys of NaN or of zeros
        similarities = cosines(vectors, stored)
    worst = int(similarities.argmin())  # argmin returns the first NaN if there is one
    if not similarities[worst] >= WORST_COSINE["fp32" if exact else "fp16"]:
        raise BuildError(
            f"{path}: row {rows[worst]}: expected the checkpoint's vector of the text, found a vector with cosine "
            f"{similarities[worst]:.4f} to it; encode the memory again with `recollect train --overwrite`"
        )
    return vectors


@dataclass(frozen=True)
class Gate:
    """The comparison of a bundle with the current version of a store. Both read the gate dataset in the same way.

    Attributes:
        dataset: The gate dataset, with the flags of the training of the current version.
        metrics: Metrics of the current version on its test split, in percent.
    """

    dataset: DatasetSettings
    metrics: dict[str, float]


def measure_current(store: Store, settings: PublishSettings, threads: int) -> Gate | None:
    """Measure the store's current version on the gate dataset; None if one of them is missing.

    Raises:
        StoreError, BundleError: If the current version cannot be opened.
        DatasetError, BuildError: If the dataset is invalid, if the current version has none of its labels, or if it
            has all test texts in its memory.
    """
    current = store.current() if settings.gate_dataset else None
    if settings.gate_dataset is None or current is None:
        return None
    cache = settings.bundle_cache
    model = open_model(settings.store, current, bundle_cache=cache, threads=threads, live="off", connections=settings)
    asked = DatasetSettings.model_construct(dataset=settings.gate_dataset)
    given, dataset, test = open_test(asked, model.predictor)
    return Gate(given, default_metrics(model.predictor, dataset, test))


def verify(
    folder: Path,
    before: Gate | None,
    sample: Sample,
    points: dict[str, Point],
    settings: PublishSettings,
    threads: int,
    device: Device,
) -> Manifest:
    """Open a bundle as a replica does, and check it. Return its manifest with the checks and measurements."""
    start = time.perf_counter()
    predictor = Predictor.open(open_bundle(folder, None), threads, device, connections=settings)
    opened, manifest = time.perf_counter() - start, predictor.manifest
    parity = cosines(sample.vectors, predictor.encode(sample.texts))
    top_b, precision = manifest.defaults.top_b, manifest.encoder.precision
    checks = [
        check(f"worst cosine to the trained encoder ({precision})", parity.min(), minimum=WORST_COSINE[precision])
    ]
    metrics = {
        "parity_texts": len(sample.texts),
        "parity_mean_cosine": float(parity.mean()),
        "parity_worst_cosine": float(parity.min()),
        "recall_at": top_b,
    }
    for part, point in points.items():
        name = f"{part} ({point.factory})"
        checks.append(check(f"recall at {top_b}, {name}", point.recall, minimum=settings.recall_target))
        metrics |= {f"recall_{part}": point.recall, f"search_{part}_ms": point.milliseconds}
        checks.append(check(f"keys within reach, {name}", point.reachable, minimum=MIN_REACHABLE))
    spent = sum(point.milliseconds for point in points.values())
    checks.append(check("search, ms a query on one thread", spent, limit=settings.latency_budget_ms))
    if manifest.engine is None:
        size = sum(manifest.files[f"{part}_keys.faiss"].size for part in ("instance", "label"))
        checks.append(check("indexes, bytes", size, limit=settings.memory_budget))
    checks.append(
        check(GOLDEN_CHECK, agreement(predictor, read_golden(folder / GOLDEN)), minimum=_GOLDEN_SHARE[precision])
    )
    checks.append(check("open, seconds", opened))
    if before is not None:
        checks += compare_with(before, predictor, settings.max_drop)
    return manifest.model_copy(update={"checks": checks, "metrics": manifest.metrics | metrics})


def compare_with(gate: Gate, predictor: Predictor, max_drop: float) -> Iterator[Check]:
    """Yield a check of each metric: the points by which a bundle is worse than the current version on a test split.

    A text in the memory of the bundle measures nothing, so few texts of a table may be in it.
    """
    dataset, name = open_named(gate.dataset), gate.dataset.dataset.name
    test = dataset.read_split("test")
    after = default_metrics(predictor, dataset, test)
    if is_table(gate.dataset):
        yield check(f"texts of {name} in the memory, share", learnt_share(test, predictor), limit=_MOST_LEARNT)
    for metric in _GATED:
        yield check(f"{metric} on {name}, points lost", gate.metrics[metric] - after[metric], limit=max_drop)


def check(name: str, found: float, *, minimum: float | None = None, limit: float | None = None) -> Check:
    """Compare a measurement with its minimum and its limit. NaN fails both comparisons."""
    passed = (minimum is None or found >= minimum) and (limit is None or found <= limit)
    return Check(name=name, found=found if np.isfinite(found) else None, least=minimum, most=limit, passed=passed)


def format_checks(checks: list[Check]) -> Iterator[str]:
    """Format the checks as aligned lines. A failed check ends with the word FAILED."""
    width = max(len(row.name) for row in checks)
    for row in checks:
        bounds = [f"{sign} {bound:.6g}" for sign, bound in ((">=", row.least), ("<=", row.most)) if bound is not None]
        found = "-" if row.found is None else f"{row.found:.6g}"
        verdict = "ok" if row.passed else "FAILED"
        yield f"{row.name:{width}}  {found:>10}  {' and '.join(bounds) or 'no limit':14}  {verdict}"


def golden_queries(memory: Memory, sample: Sample) -> list[GoldenQuery]:
    """Choose some texts as golden queries, and answer them by exact search over the memory with the default options."""
    chosen = evenly_spaced_rows(len(sample.texts), _GOLDEN_QUERIES)
    texts, vectors = [sample.texts[row] for row in chosen], sample.vectors[chosen]
    how = default_voting(memory)
    instances = exact_neighbours(memory.instance_keys, vectors, how.top_b)
    labels = exact_neighbours(memory.label_keys(), vectors, how.top_b)
    ranking = vote(Found(instances, labels), how, memory.values).scores.best()
    uids = list(read_field(memory.folder / "labels.jsonl", "uid"))
    limit = min(_GOLDEN_LABELS, max(1, len(uids) // 2))  # a list of all labels would agree with every answer
    rows = np.searchsorted(ranking.query, np.arange(len(texts) + 1))
    return [
        GoldenQuery(query=text, labels=[uids[label] for label in ranking.label[start:stop][:limit]])
        for text, start, stop in zip(texts, rows[:-1], rows[1:], strict=True)
        if stop > start
    ]
