"""Bundles of the tests whose keys are in Milvus, and a server of milvus-lite."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from pydantic import SecretStr

from recollect.index_builder.milvus.collections import NewCollections
from recollect.index_builder.milvus.index_types import index_type
from recollect.index_builder.settings import BuildSettings
from recollect.service.bundle.bundle import open_bundle
from recollect.service.bundle.files import MANIFEST, expected_files
from recollect.service.milvus.collection import LABELS, ROW, TEXT, UID, VECTOR
from recollect.service.predictor.predictor import Predictor
from recollect.service.settings import EngineSettings


def engine_at(uri: str, **changes: Any) -> EngineSettings:
    """The connection, with a time limit that a busy machine does not exceed."""
    return EngineSettings(engine_uri=SecretStr(uri), **{"engine_seconds": 60} | changes)


def build_settings(built: Any, uri: str, **changes: Any) -> BuildSettings:
    return BuildSettings(run=built.run, store=built.store, engine="milvus", engine_uri=SecretStr(uri), **changes)


def write_milvus_bundle(built: Any, folder: Path, uri: str, version: str, **changes: Any) -> Path:
    """Write the bundle of the topics again, with its keys in Milvus."""
    from recollect.index_builder.build import write_manifest
    from recollect.index_builder.milvus.build import write_engine
    from recollect.service.bundle.files import COMMON_FILES
    from recollect.service.bundle.integrity import describe_files, read_manifest
    from recollect.service.store.store import Store
    from recollect.trainer.memory.memory import open_memory

    source = Store(built.store).path(built.version)
    folder.mkdir(parents=True)
    for name in COMMON_FILES:
        shutil.copyfile(source / name, folder / name)
    memory, settings = open_memory(built.run / "memory"), build_settings(built, uri, index="flat")
    with NewCollections(settings) as collections:
        engine, indexes, _, _ = write_engine(memory, settings, collections)
        engine = collections.finish(engine, version)
        collections.keep()
    files = describe_files(folder, names=COMMON_FILES)
    facts = {"version": version, "engine": engine, "index": indexes, "files": files} | changes
    write_manifest(folder, read_manifest(source, None).model_copy(update=facts))
    return folder


def move_to_milvus(folder: Path, uri: str) -> Predictor:
    """Move the keys and instances of a bundle with flat indexes into Milvus, and open it."""
    bundle, version = open_bundle(folder), f"test_{secrets.token_hex(6)}"
    engine: dict[str, Any] = {"name": "milvus"}
    with NewCollections(engine_at(uri)) as collections:
        for part, content in (("instances", bundle.instances), ("labels", bundle.labels)):
            index, name = faiss.read_index(str(folder / f"{part[:-1]}_keys.faiss")), f"recollect_{version}_{part}"
            keys = index.reconstruct_n(0, index.ntotal)
            collections._create(name, part, keys.shape[1], index_type("flat", len(keys)))
            rows = []
            for row, key in enumerate(keys):
                rows.append({ROW: row, VECTOR: key, UID: content.uids[row], TEXT: content.texts[row]})
                if part == "instances":
                    rows[-1][LABELS] = bundle.instances.values.gather(np.array([row]))[1].tolist()
            collections.connection.call("upsert", name, data=rows)
            engine[part] = {"name": name, "rows": len(keys)}
    manifest = json.loads((folder / MANIFEST).read_bytes()) | {"engine": engine}
    manifest["files"] = {name: manifest["files"][name] for name in expected_files((), with_engine=True)}
    for path in folder.iterdir():
        if path.name not in manifest["files"]:
            path.unlink()
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return Predictor.open(open_bundle(folder), threads=1, engine=engine_at(uri))


class LiteServer:
    """A server of milvus-lite on a fixed port of this process, which can be stopped and started again."""

    def __init__(self, data: Path) -> None:
        self._data, self._port = data, 0
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        self._server, self._database, self._port = start_server_in_thread(str(self._data), port=self._port)

    def stop(self) -> None:
        self._server.stop(grace=0).wait()
        self._database.close()
