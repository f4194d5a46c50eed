"""Bundles of the tests whose keys are in Milvus, and a server of milvus-lite."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from index_builder.settings import BuildSettings
from service.settings import EngineSettings


def engine_at(uri: str, **changes: Any) -> EngineSettings:
    return EngineSettings(engine_uri=SecretStr(uri), **changes)


def build_settings(built: Any, uri: str, **changes: Any) -> BuildSettings:
    return BuildSettings(run=built.run, store=built.store, engine="milvus", engine_uri=SecretStr(uri), **changes)


def write_milvus_bundle(built: Any, folder: Path, uri: str, version: str, **changes: Any) -> Path:
    """Write the bundle of the topics again, with its keys in Milvus."""
    from index_builder.build import write_manifest
    from index_builder.compaction.served_memory import ServedMemory
    from index_builder.milvus.build import write_engine
    from index_builder.milvus.collections import NewCollections
    from service.bundle.files import COMMON_FILES
    from service.bundle.integrity import describe_files, read_manifest
    from service.store.store import Store
    from trainer.memory.memory import open_memory

    source = Store(built.store).path(built.version)
    folder.mkdir(parents=True)
    for name in COMMON_FILES:
        shutil.copyfile(source / name, folder / name)
    served, settings = ServedMemory.whole(open_memory(built.run / "memory")), build_settings(built, uri, index="flat")
    with NewCollections(settings) as collections:
        engine, indexes, _, _ = write_engine(served, version, settings, collections)
        collections.keep()
    files = describe_files(folder, names=COMMON_FILES)
    facts = {"version": version, "engine": engine, "index": indexes, "files": files} | changes
    write_manifest(folder, read_manifest(source, None).model_copy(update=facts))
    return folder


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
