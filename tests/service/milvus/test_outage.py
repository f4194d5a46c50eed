from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from recollect.service.bundle.manifest import Engine
from recollect.service.errors import EngineError
from recollect.service.http.app import create_app
from recollect.service.milvus.connection import Connection
from recollect.service.model import Model
from recollect.service.serve_settings import ServeSettings
from recollect.service.serving.batcher import Batcher
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.model_manager import ModelManager
from recollect.service.versions.opening import Opener
from recollect.service.versions.reports import reports_of
from tests.service.milvus.milvus_bundles import LiteServer, engine_at, move_to_milvus, write_milvus_bundle

pytest.importorskip("pymilvus", reason="pymilvus is not installed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiteServer]:
    server = LiteServer(tmp_path / "milvus")
    yield server
    server.stop()


def open_in_milvus(built: Any, server: LiteServer, folder: Path) -> tuple[Model, Any, Engine]:
    """Move the built version into Milvus, and open it."""
    shutil.copytree(Store(built.store).path(built.version), folder / "bundle")
    model = Model(move_to_milvus(folder / "bundle", server.uri))
    keys, engine = model.predictor.keys, model.manifest.engine
    assert keys is not None
    assert engine is not None
    return model, keys, engine


def test_replica_answers_503_while_milvus_is_away_and_recovers_by_itself(
    built: Any, server: LiteServer, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    with store.incoming() as folder:
        write_milvus_bundle(built, folder / "bundle", server.uri, "v1")
        store.publish(folder / "bundle", "v1")
    store.activate("v1")
    metrics, engine = Metrics(), engine_at(server.uri, engine_seconds=2)
    manager = ModelManager(Opener(store, threads=1, engine=engine), reports_of(store, None), metrics, 60)
    manager.open_current()
    batcher = Batcher(1, 256, 32, metrics, hang_seconds=60)
    app = create_app(manager, batcher, ServeSettings(store=store.root, cache_mb=0), metrics, None, None)
    with TestClient(app) as client:
        before = client.post("/predict", json={"query": "bread"})
        assert (before.status_code, client.get("/health/ready").status_code) == (200, 200)
        server.stop()
        away = client.post("/predict", json={"query": "bread"})
        assert (away.status_code, away.json()["code"], away.headers["Retry-After"]) == (503, "engine_down", "1")
        assert server.uri in away.json()["detail"]
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        server.start()
        while client.get("/health/ready").status_code == 503:
            time.sleep(0.05)
        assert client.post("/predict", json={"query": "bread"}).json()["labels"] == before.json()["labels"]
    manager.close()


def test_collection_that_was_released_is_loaded_again_by_the_breaker(
    built: Any, server: LiteServer, tmp_path: Path
) -> None:
    model, keys, engine = open_in_milvus(built, server, tmp_path)
    before = model.predict("bread")
    keys.connection.call("release_collection", engine.labels.name)
    with pytest.raises(EngineError, match="Milvus loads the collection; try again shortly"):
        model.predict("bread")
    assert keys.problem is not None
    while keys.problem is not None:
        time.sleep(0.05)
    assert model.predict("bread") == before
    keys.close()


def test_replica_whose_token_is_refused_gives_the_reason_at_once_and_recovers_by_itself(
    built: Any, server: LiteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymilvus import MilvusException

    def refuse(*_: Any, **__: Any) -> None:
        raise MilvusException(code=1400, message="not authenticated")

    model, keys, _ = open_in_milvus(built, server, tmp_path)
    before = model.predict("bread")
    with monkeypatch.context() as changed:
        for method in ("search", "list_collections"):
            changed.setattr(keys.connection._client, method, refuse)
        with pytest.raises(EngineError, match="expected Milvus to accept the token of --engine-token, found: not auth"):
            model.predict("bread")
        assert keys.problem is not None
        assert not keys.connection._answers()
    while keys.problem is not None:
        time.sleep(0.05)
    assert model.predict("bread") == before
    keys.close()


def test_unreachable_server_is_named_without_the_credentials_of_its_uri() -> None:
    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:9/texts: expected Milvus to answer, found: ") as error:
        Connection(engine_at("http://someone:secret@127.0.0.1:9/texts", engine_seconds=1))
    assert "secret" not in str(error.value)


def test_server_that_is_too_old_is_refused(server: LiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymilvus import MilvusClient

    monkeypatch.setattr(MilvusClient, "get_server_version", lambda self, timeout: "v2.2.16")
    with pytest.raises(EngineError, match=r"expected Milvus 2\.4 or later, found v2\.2\.16; upgrade the server"):
        Connection(engine_at(server.uri))
