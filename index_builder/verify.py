"""Verification before publishing: checks of a bundle, measured with the code that serves it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index_builder.bundle_tables import read_field
from index_builder.choose_index import evenly_spaced_rows
from index_builder.errors import BuildError
from index_builder.evaluate import default_metrics
from index_builder.fidelity import METRICS, exact_search, quality_changes
from index_builder.onnx_export import WORST_COSINE, Sample, cosines
from index_builder.recall import MIN_REACHABLE
from index_builder.settings import BuildSettings
from service.bundle.bundle import open_bundle
from service.bundle.manifest import Check, Point, Precision
from service.model import open_model
from service.predictor.golden import GOLDEN_CHECK, GoldenQuery, agreement, read_golden
from service.predictor.predictor import Predictor
from service.predictor.scoring import Values, cast_votes, rank
from service.settings import Device
from service.store.store import Store
from trainer.encoder import Encoder
from trainer.memory import Memory

# Texts of the memory for the comparison of encoders; golden queries among them; golden labels of each query.
_SAMPLE_TEXTS, _GOLDEN_QUERIES, _GOLDEN_LABELS = 256, 32, 10
# Share of the golden labels that the answers must contain.
_GOLDEN_SHARE: dict[Precision, float] = {"fp32": 0.95, "fp16": 0.95, "int8": 0.85}
# Metrics that the gate compares.
_GATED = ("P@1", "P@5", "nDCG@5", "R@100")


@dataclass(frozen=True)
class Verification:
    """Checks of a bundle, and its other measurements."""

    checks: list[Check]
    metrics: dict[str, float]


def encode_sample(memory: Memory, encoder: Encoder) -> Sample:
    """Encode some of the memory's texts, and compare the vectors with the memory's keys.

    Raises:
        BuildError: If the keys differ from the vectors.
    """
    rows = evenly_spaced_rows(memory.plan.instances, _SAMPLE_TEXTS)
    wanted = set(rows.tolist())
    texts = [text for row, text in enumerate(read_field(memory.folder / "instances.jsonl", "text")) if row in wanted]
    if len(texts) < len(rows):
        raise BuildError(
            f"{memory.folder}/instances.jsonl: expected {memory.plan.instances:,} lines, found fewer; "
            "run `recollect train --overwrite`"
        )
    vectors = encoder.encode(texts, encoder.config.max_length)
    with np.errstate(invalid="ignore", divide="ignore"):  # a key of NaN or of zeros raises an error below
        stored = cosines(vectors, np.asarray(memory.keys[rows], dtype=np.float32))
    worst = int(stored.argmin())  # the first NaN, if there is one
    if not stored[worst] >= WORST_COSINE["fp32"]:
        raise BuildError(
            f"{memory.folder}/keys.npy: row {rows[worst]}: expected the checkpoint's vector of the text, "
            f"found a key with cosine {stored[worst]:.4f} to it; encode the memory again with "
            "`recollect train --overwrite`"
        )
    return Sample(texts, vectors)


def current_metrics(store: Store, settings: BuildSettings, threads: int) -> dict[str, float]:
    """Metrics of the current version on the gate dataset; empty without a current version or a gate dataset.

    Raises:
        StoreError, BundleError: If the current version cannot be opened.
        DatasetError, BuildError: If the dataset is invalid, or the current version has none of its labels.
    """
    current = store.current() if settings.gate_dataset else None
    if settings.gate_dataset is None or current is None:
        return {}
    model = open_model(settings.store, current, bundle_cache=settings.bundle_cache, threads=threads)
    return default_metrics(model.predictor, settings.gate_dataset)


def verify(
    folder: Path,
    memory: Memory,
    before: dict[str, float],
    sample: Sample,
    points: dict[str, Point],
    settings: BuildSettings,
    threads: int,
    device: Device,
) -> Verification:
    """Open a bundle as a replica does, and check it.

    Args:
        folder: The bundle, not yet published.
        memory: The memory of the bundle.
        before: Metrics of the current version on the gate dataset.
        sample: Texts and their vectors by the trained encoder.
        points: The chosen point of each part's index.
        settings: Bounds of the checks.
        threads: Threads that search and encode.
        device: Device that serves the bundle here.
    """
    start = time.perf_counter()
    predictor = Predictor.open(open_bundle(folder, None), threads, device)
    opened, manifest = time.perf_counter() - start, predictor.manifest
    parity = cosines(sample.vectors, predictor.encode(sample.texts))
    top_b, precision = manifest.defaults.top_b, manifest.encoder.precision
    checks = [check(f"worst cosine to the trained encoder ({precision})", parity.min(), least=WORST_COSINE[precision])]
    metrics = {
        "parity_texts": len(sample.texts),
        "parity_mean_cosine": float(parity.mean()),
        "parity_worst_cosine": float(parity.min()),
        "recall_at": top_b,
    }
    for part, point in points.items():
        name = f"{part} ({point.factory})"
        checks.append(check(f"recall at {top_b}, {name}", point.recall, least=settings.recall_target))
        metrics |= {f"recall_{part}": point.recall, f"search_{part}_ms": point.milliseconds}
        checks.append(check(f"keys within reach, {name}", point.reachable, least=MIN_REACHABLE))
    spent = sum(point.milliseconds for point in points.values())
    checks.append(check("search, ms a query on one thread", spent, most=settings.latency_budget_ms))
    size = sum(manifest.files[f"{part}_keys.faiss"].size for part in ("instance", "label"))
    checks.append(check("indexes, bytes", size, most=settings.memory_budget))
    checks.append(check(GOLDEN_CHECK, agreement(predictor, read_golden(folder)), least=_GOLDEN_SHARE[precision]))
    checks.append(check("open, seconds", opened))
    changes = quality_changes(memory, predictor)
    checks.append(check(f"worst cosine on left-out texts ({precision})", changes["left_out_worst_cosine"]))
    for metric in METRICS:
        checks.append(check(f"{metric}, points won by {precision}", changes[f"{metric}_change_precision"]))
        checks.append(check(f"{metric}, points won by the indexes", changes[f"{metric}_change_index"]))
    if settings.gate_dataset and before:
        checks += gate(predictor, before, settings.gate_dataset, settings.max_drop)
    return Verification(checks, metrics | changes)


def gate(predictor: Predictor, before: dict[str, float], dataset: Path, max_drop: float) -> Iterator[Check]:
    """Check how many points a bundle loses to the current version on a dataset's test split."""
    after = default_metrics(predictor, dataset)
    for metric in _GATED:
        yield check(f"{metric} on {dataset.name}, points lost", before[metric] - after[metric], most=max_drop)


def check(name: str, found: float, *, least: float | None = None, most: float | None = None) -> Check:
    """Compare a measurement with its least and most allowed value. NaN fails both."""
    passed = (least is None or found >= least) and (most is None or found <= most)
    return Check(name=name, found=found if np.isfinite(found) else None, least=least, most=most, passed=passed)


def format_checks(checks: list[Check]) -> Iterator[str]:
    """Format the checks as aligned lines, with failed checks marked."""
    width = max(len(each.name) for each in checks)
    for each in checks:
        bounds = [f"{sign} {bound:.6g}" for sign, bound in ((">=", each.least), ("<=", each.most)) if bound is not None]
        found = "-" if each.found is None else f"{each.found:.6g}"
        verdict = "ok" if each.passed else "FAILED"
        yield f"{each.name:{width}}  {found:>10}  {' and '.join(bounds) or 'no limit':14}  {verdict}"


def golden_queries(memory: Memory, sample: Sample) -> list[GoldenQuery]:
    """Choose some texts and answer them by exact search over the memory, with the default options."""
    chosen = evenly_spaced_rows(len(sample.texts), _GOLDEN_QUERIES)
    texts, vectors = [sample.texts[row] for row in chosen], sample.vectors[chosen]
    defaults = memory.defaults
    lambda_, top_b = defaults["lambda"], int(defaults["top_b"])
    found = exact_search(memory, vectors, top_b, lambda_)
    values = Values(memory.value_indptr, memory.value_indices, memory.plan.labels)
    ranking = rank(cast_votes(found, defaults["temperature"], lambda_, values), values)
    uids = list(read_field(memory.folder / "labels.jsonl", "uid"))
    most = min(_GOLDEN_LABELS, max(1, len(uids) // 2))  # an answer with all labels would prove nothing
    rows = np.searchsorted(ranking.query, np.arange(len(texts) + 1))
    return [
        GoldenQuery(query=text, labels=[uids[label] for label in ranking.label[start:stop][:most]])
        for text, start, stop in zip(texts, rows[:-1], rows[1:], strict=True)
        if stop > start
    ]
