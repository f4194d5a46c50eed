"""Measure kinds of indexes with synthetic keys, and the size of the other files of a bundle."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.fleet.constants import IndexCost, Indexes
from benchmarks.index_costs import measure
from benchmarks.synthetic_memory import SyntheticMemory
from recollect.index_builder.settings import BuildSettings
from recollect.service.store.store import Store

_KINDS = ("Flat", "SQ8", "HNSW32,SQ8", "IVF{lists},SQ8", "IVF{lists},RaBitQ4", "IVF{lists},PQ{half}x4fs,Refine(SQ8)")
_DIM, _LABELS_PER_INSTANCE, _QUERIES = 384, 3, 300
# Files of a bundle that grow with the number of instances, except for the index.
_PER_INSTANCE = ("instance_texts", "instance_uids", "value_", "voter_")


def measure_indexes(store: Path, keys: int) -> Indexes:
    """Measure all kinds of indexes.

    Args:
        store: A store, whose current version has texts, uids and labels of usual size.
        keys: Number of synthetic keys; a third of them are labels.

    Raises:
        BuildError, ServiceError: If a bundle cannot be built, or the store has no version.
    """
    synthetic = SyntheticMemory(keys - keys // 3, keys // 3, _DIM, _LABELS_PER_INSTANCE, seed=1)
    costs = []
    for kind in _KINDS:
        index = kind.format(lists=max(1, round((keys / 3) ** 0.5)), half=_DIM // 2)
        with tempfile.TemporaryDirectory() as folder:
            settings = BuildSettings(
                run=Path(folder) / "run",
                store=str(Path(folder) / "bundle"),
                index=index,
                recall_target=0.95,
                precision="fp32",
                threads=1,
            )
            found = measure(synthetic, _QUERIES, settings)
        costs.append(
            IndexCost(
                index=index,
                keys=keys,
                bytes_per_key=found.bytes_per_key,
                recall=found.recall,
                search_ms=found.search_p50_ms,
                build_cpu_seconds=found.build_cpu_seconds,
                peak_mb=found.peak_mb,
            )
        )
    opened = Store(store)
    manifest = opened.manifest(opened.require_current())
    other = sum(info.size for name, info in manifest.files.items() if name.startswith(_PER_INSTANCE))
    return Indexes(
        dim=_DIM,
        labels_per_instance=_LABELS_PER_INSTANCE,
        bytes_per_instance=other / manifest.counts.instances,
        costs=costs,
    )
