"""Write the index of the label keys and the index of the instance keys of a bundle."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from recollect.core.bundle.manifest import EncoderInfo, Indexes, IndexInfo, Point
from recollect.core.settings import Device
from recollect.core.system.console import progress_bar
from recollect.index_builder.choose_index import QUERIES, Target, TrialQueries, build_chosen_index, evenly_spaced_rows
from recollect.index_builder.faiss_index import KeysToIndex, factory_string
from recollect.index_builder.settings import PublishSettings
from recollect.trainer.memory.memory import Memory

# Exact search of an index may take at most this long, unless no other index meets the requirements. A transformer or a
# server takes milliseconds to encode a query, so a faster search would hardly shorten an answer. A static encoder takes
# 0.03 ms.
_EXACT_MILLISECONDS = {"transformer": 2.0, "server": 2.0, "static": 0.2}


def write_indexes(
    memory: Memory, folder: Path, settings: PublishSettings, device: Device, encoder: EncoderInfo
) -> tuple[Indexes, dict[str, Point], dict[str, list[Point]]]:
    """Build the index of the label keys, then the index of the instance keys.

    The index of the instance keys may use the part of the memory and time budgets that the first index left unused.
    Return the manifest entries, the chosen measurement of each index, and all measurements.
    """
    instances, top_b = memory.plan.instances, int(memory.defaults["top_b"])
    rows = evenly_spaced_rows(instances, QUERIES)
    queries = TrialQueries(memory.queries(rows), rows)
    if memory.defaults["label_key_alpha"]:
        # An enriched label key is normalised again, so a damaged key of a label's text would go unnoticed.
        for _ in KeysToIndex(memory.keys[instances:], instances).blocks():
            pass
    size_bytes, milliseconds = settings.memory_budget or np.inf, settings.latency_budget_ms or np.inf
    infos: dict[str, IndexInfo] = {}
    points: dict[str, Point] = {}
    curves: dict[str, list[Point]] = {}
    for part, first_row, keys, share in (
        ("labels", instances, memory.label_keys(), memory.plan.labels / memory.plan.keys),
        ("instances", 0, memory.instance_keys, 1.0),
    ):
        limits = size_bytes * share, milliseconds * (1 + share) / 2, _EXACT_MILLISECONDS[encoder.kind]
        target = Target(settings.recall_target, top_b, *limits, settings.hnsw_ef_search)
        indexed = KeysToIndex(keys, first_row, memory.is_normalised)
        asked = queries if part == "instances" else TrialQueries(queries.vectors)
        kind = factory_string(settings.index, len(keys), settings.hnsw_m)
        path = folder / f"{part[:-1]}_keys.faiss"
        bar = functools.partial(_progress_bar, part)
        infos[part], points[part], curves[part] = build_chosen_index(
            indexed, path, kind, asked, target, bar, device, settings.hnsw_ef_construction
        )
        size_bytes, milliseconds = size_bytes - path.stat().st_size, milliseconds - points[part].milliseconds
    return Indexes(instances=infos["instances"], labels=infos["labels"]), points, curves


@contextlib.contextmanager
def _progress_bar(part: str, factory: str, keys: int) -> Iterator[Callable[[int], object]]:
    with progress_bar(keys, "key", f"index {part} ({factory})") as bar:
        yield bar.update
