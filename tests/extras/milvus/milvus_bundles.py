"""Bundles of the tests whose keys are in Milvus, and a server of milvus-lite."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from pydantic import SecretStr

from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import INDEX_FILES, MANIFEST
from recollect.core.predictor import Predictor
from recollect.core.settings import ConnectionSettings


def engine_at(uri: str, **changes: Any) -> ConnectionSettings:
    """The connection, with a time limit that a busy machine does not exceed."""
    return ConnectionSettings(engine_uri=SecretStr(uri), **{"engine_seconds": 60} | changes)


def write_collection(uri: str, name: str, keys: np.ndarray) -> None:
    """Write keys as a build does: a collection with the fields `row` and `vector`."""
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(uri, dedicated=True)
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=keys.shape[1])
    index = MilvusClient.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection(name, schema=schema, index_params=index)
    client.insert(name, data=[{"row": row, "vector": key} for row, key in enumerate(keys)])
    client.close()


def move_keys(folder: Path, uri: str) -> Path:
    """Move the keys of a bundle with flat indexes into Milvus."""
    version, engine = f"test_{secrets.token_hex(6)}", {"name": "milvus"}
    for part in ("instance", "label"):
        index = faiss.read_index(str(folder / f"{part}_keys.faiss"))
        engine[f"{part}s"] = f"recollect_{version}_{part}s"
        write_collection(uri, engine[f"{part}s"], index.reconstruct_n(0, index.ntotal))
    manifest = json.loads((folder / MANIFEST).read_bytes()) | {"engine": engine}
    for name in INDEX_FILES:
        del manifest["files"][name]
        (folder / name).unlink()
    for index in manifest["index"].values():
        index |= {"kind": "flat", "factory": "FLAT", "effort": 0, "refine": 1}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def move_to_milvus(folder: Path, uri: str) -> Predictor:
    """Move the keys of a bundle with flat indexes into Milvus, and open it."""
    return Predictor.open(open_bundle(move_keys(folder, uri)), threads=1, connections=engine_at(uri))


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
