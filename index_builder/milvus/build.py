"""Put the keys of a memory into Milvus, as the engine of a new version."""

from __future__ import annotations

from recollect.index_builder.choose_index import QUERIES, Target, evenly_spaced_rows
from recollect.index_builder.errors import BuildError
from recollect.index_builder.milvus.collections import NewCollections
from recollect.index_builder.milvus.index_types import index_type
from recollect.index_builder.milvus.measure import check_rows, choose_effort
from recollect.index_builder.ranking.bundle_ranker import choose_ranker
from recollect.index_builder.settings import BuildSettings
from recollect.service.bundle.manifest import Collection, Engine, Indexes, IndexInfo, Point
from recollect.service.milvus.collection import KeyCollection
from recollect.trainer.memory.memory import Memory


def check_settings(memory: Memory, settings: BuildSettings) -> None:
    """Check the settings of a build before the work that takes minutes.

    Raises:
        BuildError: If Milvus has no such index, or the bundle would have a part that needs its instances in files.
    """
    index_type(settings.index, memory.plan.instances)
    if settings.lexical == "on":
        raise BuildError(
            "--lexical on: expected auto or off with --engine milvus, because the index of words is as large as the "
            "texts; leave --lexical out"
        )
    if choose_ranker(memory, settings) is not None:
        raise BuildError(
            f"{settings.run}: expected a run without a ranker with --engine milvus, because a ranker reads the words "
            "and labels of many instances, found one; build with --rank off"
        )


def write_engine(
    memory: Memory, settings: BuildSettings, collections: NewCollections
) -> tuple[Engine, Indexes, dict[str, Point], dict[str, list[Point]]]:
    """Write, check and measure the collections of a version. `NewCollections.finish` gives them their names later.

    Args:
        memory: The memory.
        settings: Settings of the index.
        collections: Writes the collections.

    Returns:
        The engine and the indexes of the manifest, the chosen measurement of each index, and all measurements.

    Raises:
        BuildError: If a row does not fit into Milvus, or Milvus has other rows than the memory.
        EngineError: If Milvus does not answer, or refuses a call.
    """
    connection = collections.connection
    queries = memory.queries(evenly_spaced_rows(memory.plan.instances, QUERIES))
    target = Target(settings.recall_target, int(memory.defaults["top_b"]), effort=settings.hnsw_ef_search)
    written: dict[str, Collection] = {}
    infos: dict[str, IndexInfo] = {}
    points: dict[str, Point] = {}
    curves: dict[str, list[Point]] = {}
    for part, keys in (("labels", memory.label_keys()), ("instances", memory.instance_keys)):
        index = index_type(settings.index, len(keys), settings.hnsw_m, settings.hnsw_ef_construction)
        written[part] = collections.write(memory, part, keys, index)
        infos[part], points[part], curves[part] = choose_effort(connection, written[part], index, keys, queries, target)
        check_rows(memory, part, keys, KeyCollection(connection, written[part], infos[part], memory.plan.dim))
    engine = Engine(name="milvus", instances=written["instances"], labels=written["labels"])
    return engine, Indexes(instances=infos["instances"], labels=infos["labels"]), points, curves
