"""The benchmark of the engines measures every index of each engine, and reports bad input as an error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pymilvus", reason="pymilvus is not installed")

from benchmarks import engines
from recollect.service.milvus.connection import Connection
from tests.service.milvus.milvus_bundles import LiteServer, engine_at


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server that RECOLLECT_MILVUS_URI names, or a server of milvus-lite."""
    if given := os.environ.get("RECOLLECT_MILVUS_URI"):
        yield given
        return
    lite = LiteServer(tmp_path / "milvus")
    yield lite.uri
    lite.stop()


def test_every_index_of_each_engine_is_measured_and_no_collection_is_left(
    built: Any, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engines.main([str(built.run), str(built.dataset), "--queries", "3", "--engine-uri", server]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["instances"], found["queries"]) == (28, 3)
    measured = [(each["engine"], each["index"]) for each in found["searches"]]
    assert measured[:3] == [("faiss", "Flat"), ("milvus-lite", "FLAT"), ("milvus", "FLAT")]
    assert [engine for engine, _ in measured[3:]] == ["faiss", "milvus-lite", "milvus"]
    assert {index for _, index in measured[4:]} == {"HNSW"}
    for each in found["searches"]:
        assert each["recall"] == 1
        assert min(each["ms"], each["ms_together"], each["elapsed_ms"], each["elapsed_ms_together"]) > 0
    connection = Connection(engine_at(server))
    assert not [name for name in connection.collections() if "_unfinished_" in name]
    connection.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--queries", "0"], "argument --queries: expected a whole number of at least 1, found 0"),
        (["--engine-uri", "localhost:19530"], "--engine-uri: expected http://HOST:PORT, https://HOST:PORT or a file"),
        ([], "expected a memory, found none"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        engines.main([str(tmp_path / "none"), str(tmp_path), *flags])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
