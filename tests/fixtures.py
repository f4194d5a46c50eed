"""Fixtures of several folders: small bundles that are written quickly, and a real bundle that is opened once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import made_once
from tests.extras import is_present

if TYPE_CHECKING:
    from tests.service.redis_server import RedisServer

INSTANCE_KEYS, LABEL_KEYS = np.eye(3, 4, dtype=np.float32), np.eye(2, 4, dtype=np.float32)
VOTES = ([0], [0, 1], [])


def write_votes(folder: Path, votes: Sequence[Sequence[int]], labels: int) -> None:
    """Write the arrays of a bundle that say which labels the instances vote for."""
    voters: list[list[int]] = [[] for _ in range(labels)]
    for instance, row in enumerate(votes):
        for label in row:
            voters[label].append(instance)
    for name, rows in (("value", votes), ("voter", voters)):
        np.save(folder / f"{name}_indptr.npy", np.cumsum([0, *map(len, rows)]))
        np.save(folder / f"{name}_indices.npy", np.array([each for row in rows for each in row], dtype=np.int32))
    np.save(folder / "label_counts.npy", np.array([*map(len, voters)], dtype=np.int32))


@pytest.fixture(scope="session")
def write_bundle() -> Callable[..., Path]:
    """Writes a bundle with the given keys and votes. The bundle can be opened; its encoder is only a placeholder."""
    from recollect.core.bundle.files import MANIFEST
    from recollect.core.bundle.integrity import describe_files
    from recollect.core.bundle.manifest import Indexes, Manifest
    from recollect.core.bundle.strings import write_table
    from recollect.index_builder.faiss_index import KeysToIndex, build_index, write_index

    def write(
        folder: Path,
        version: str = "v1",
        instance_keys: np.ndarray = INSTANCE_KEYS,
        label_keys: np.ndarray = LABEL_KEYS,
        votes: Any = VOTES,
        kind: str = "flat",
        **changes: Any,
    ) -> Path:
        folder.mkdir(parents=True)
        counts = {"instances": len(instance_keys), "labels": len(label_keys), "pairs": sum(map(len, votes))}
        write_votes(folder, votes, len(label_keys))
        info = {}
        for part, keys in (("instance", instance_keys), ("label", label_keys)):
            index, info[part] = build_index(KeysToIndex(keys), kind)
            write_index(index, folder / f"{part}_keys.faiss")
            uids = write_table(folder, f"{part}_uids", (f"{part} {row}" for row in range(len(keys))))
            write_table(folder, f"{part}_texts", (f"text of {part} {row}" for row in range(len(keys))))
        np.save(folder / "label_order.npy", uids.sorted_rows())
        (folder / "encoder.onnx").write_bytes(b"no encoder")
        (folder / "tokenizer.json").write_bytes(b"{}")
        (folder / "golden.json").write_bytes(b"[]")
        manifest = {
            "format_version": 3,
            "version": version,
            "created": "2026-01-02T03:04:05Z",
            "counts": counts,
            "dim": instance_keys.shape[1],
            "encoder": {"name": "none", "pooling": "mean", "precision": "fp32", "max_length": 32, "pad_id": 0},
            "index": Indexes(instances=info["instance"], labels=info["label"]),
            "defaults": {"lambda": 0.5, "temperature": 0.04, "top_b": 200, "top_k": 10},
            "metrics": {"recall_labels": 1.0},
            "files": describe_files(folder),
        }
        text = Manifest.model_validate(manifest | changes).model_dump_json(by_alias=True)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def bundle_folder(tmp_path: Path, write_bundle: Callable[..., Path]) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture(scope="session")
def predictor(built: Any) -> Any:
    from recollect.model import open_model

    return open_model(built.store, built.version).predictor


@pytest.fixture(scope="session")
def milvus_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server that RECOLLECT_MILVUS_URI names, or a file of milvus-lite."""
    if not is_present("milvus"):
        pytest.skip("recollect/extras/milvus was deleted")
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    return os.environ.get("RECOLLECT_MILVUS_URI") or str(tmp_path_factory.mktemp("milvus") / "milvus.db")


@pytest.fixture(scope="session")
def milvus_predictor(
    built: Any, move_to_milvus: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The same memory as that of `predictor`, with its keys in Milvus."""
    from recollect.store.store import Store

    folder = tmp_path_factory.mktemp("milvus") / "bundle"
    shutil.copytree(Store(built.store).bundles / built.version, folder)
    return move_to_milvus(folder)


@pytest.fixture(scope="session")
def move_to_milvus(milvus_uri: str) -> Iterator[Callable[[Path], Any]]:
    """Moves the keys of a bundle into Milvus, and opens it."""
    from tests.extras.milvus import milvus_bundles

    moved: list[Any] = []

    def move(folder: Path) -> Any:
        moved.append(milvus_bundles.move_to_milvus(folder, milvus_uri))
        return moved[-1]

    yield move
    for predictor in moved:
        engine = predictor.manifest.engine
        predictor.engine.drop(engine.instances, engine.labels)
        predictor.close()


@pytest.fixture(scope="session")
def light_versions(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.service.stores import light_store

    folder = made_once(
        tmp_path_factory, "light", lambda folder: light_store(built.store, built.version, folder / "store")
    )
    return folder / "store"


@pytest.fixture
def store(light_versions: Path, tmp_path: Path) -> Path:
    """A store with small versions, which a test may change; v3 is current."""
    from tests.processes import copy_store

    return copy_store(light_versions, tmp_path / "store")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a local S3 server."""
    from tests.store.servers import s3_server

    with s3_server() as address:
        yield address


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    from tests.service.redis_server import running_redis

    with running_redis(tmp_path) as server:
        yield server
