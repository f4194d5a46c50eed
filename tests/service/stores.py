"""Stores for tests: changed copies of a version, their activations, and small versions that open in milliseconds."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from recollect.core.bundle.field_table import write_field_table
from recollect.core.bundle.integrity import describe_files
from recollect.core.bundle.label_fields import to_json
from recollect.core.bundle.strings import write_table
from recollect.service.redis_client import RedisClient
from recollect.service.versions.reports import Report, reports_of, wait_for_replicas
from recollect.store.activations import ActivationRecord
from recollect.store.store import Store
from tests.conftest import TOPICS
from tests.processes import PATIENCE_SECONDS, Load, copy_store, until

# For each small version, the number of labels in an answer.
TOP_K = {"v3": 3, "v5": 5}


class Activation:
    """Activates versions of a store, and waits for its replicas."""

    def __init__(self, store: Store, redis_client: RedisClient | None) -> None:
        self._store, self.reports = store, reports_of(store, redis_client)
        self.activate, self.rollback = store.activate, store.rollback

    def wait(self, record: ActivationRecord, seconds: float, replicas: int | None = None) -> list[Report]:
        return wait_for_replicas(self._store, self.reports, record, seconds, replicas)


# Edits the folder and the manifest of a bundle.
Change = Callable[[Path, dict[str, Any]], object]


def edit_bundle(folder: Path, change: Change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(folder, manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def add_version(store: Path, source: str, version: str, change: Change) -> str:
    """Publish a changed copy of a version under another name."""
    folder = store / "bundles" / version
    shutil.copytree(store / "bundles" / source, folder)
    edit_bundle(folder, lambda _, manifest: manifest.update(version=version))
    edit_bundle(folder, change)
    return version


def make_first(store: Path, version: str) -> None:
    """Make a version current as if no other version had been current before."""
    shutil.rmtree(store / "activations", ignore_errors=True)
    Store(store).activate(version)


def answers_with(top_k: int) -> Change:
    """A change to a copied version: it then answers with this number of labels, so that answers show their version."""
    return lambda _, manifest: manifest["defaults"].update(top_k=top_k)


def with_changed_files(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: every file gets other bytes at its end, and opens as before.

    A server opens such a version completely; it shares equal files with the version that it serves.
    """
    endings = {".onnx": b"\x32\x00", ".json": b" ", ".faiss": b"\0", ".npy": b"\0"}
    for name in manifest["files"]:
        with (folder / name).open("ab") as file:
            file.write(endings[Path(name).suffix])
    rehash(folder, manifest)


def relabel(uids: list[str]) -> Change:
    """A change to a copied version: the labels get other uids."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        table = write_table(folder, "label_uids", uids)
        np.save(folder / "label_order.npy", table.sorted_rows())
        (folder / "golden.json").write_bytes(b"[]")  # the golden queries contain the old uids
        rehash(folder, manifest)

    return change


def with_fields(fields: Mapping[str, dict[str, Any]]) -> Change:
    """A change to a copied version of the topics: these labels get these fields."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        write_field_table(folder, [to_json(fields.get(label, {})) for label in TOPICS])
        rehash(folder, manifest)

    return change


def light_encoder(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: the new encoder adds random token vectors. It opens in milliseconds."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    dim = manifest["dim"]
    table = np.random.default_rng(7).standard_normal((64, dim), dtype=np.float32)
    constants = {"size": np.array(64), "table": table, "last": np.array([-1]), "token": np.array([1])}
    nodes = [
        helper.make_node("Mod", ["input_ids", "size"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["token_vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["token_vectors", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "token"], ["bag"], keepdims=0),
        helper.make_node("LpNormalization", ["bag"], ["vectors"], axis=-1, p=2),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "token"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", dim])
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "bag", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "encoder.onnx")
    rehash(folder, manifest)
    manifest["checks"] = []  # the checks were measured with another encoder


def rehash(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the SHA-256 and the size of changed files into the manifest."""
    manifest["files"] = {name: info.model_dump() for name, info in describe_files(folder).items()}


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def light_store(source: Path, version: str, to: Path) -> Path:
    """Write a store with versions v3 and v5 of a real bundle, with a tiny encoder; v3 is current.

    The versions have no equal files.
    """
    store = copy_store(source, to)
    add_version(store, version, "light", light_encoder)
    add_version(store, "light", "changed", with_changed_files)
    for name, source_version in (("v3", "light"), ("v5", "changed")):
        add_version(store, source_version, name, answers_with(TOP_K[name]))
    make_first(store, "v3")
    return store


@contextlib.contextmanager
def loading(url: str, threads: int = 4) -> Iterator[Load]:
    """Load on a server. The kind of an answer is its version; it is wrong if it does not fit the version."""
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:

        def ask() -> tuple[str, str]:
            answer = client.post("/predict", json={"query": "tax on bread"})
            version = answer.json()["version"]
            fits = (answer.status_code, len(answer.json()["labels"])) == (200, TOP_K[version])
            right = fits and answer.headers["x-index-version"] == version
            return version, "" if right else f"{answer.status_code} {answer.headers} {answer.text}"

        with Load(ask, threads) as load:
            yield load


def until_serves(client: httpx.Client, version: str) -> None:
    until(lambda: client.get("/version").json()["version"] == version, lambda: f"{version} is not served")
