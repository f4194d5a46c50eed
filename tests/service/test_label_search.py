"""The search among all labels over HTTP: `GET /labels`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.processes import copy_store, serving
from tests.service.stores import add_version, make_first, relabel

WRITER = "writer-0123456789abcdef"


@pytest.fixture(scope="module")
def client(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a writable service; the uids of the labels are numbers after `topic-`."""
    store = copy_store(light_versions, tmp_path_factory.mktemp("labels") / "store")
    make_first(store, add_version(store, "v3", "numbered", relabel([f"topic-{number}" for number in range(8)])))
    with serving(store, "--writable", keys=f"writer {WRITER} write\n", key=WRITER) as server:
        yield server.client


def texts(client: httpx.Client, search: str) -> list[str]:
    response = client.get("/labels", params={"search": search})
    assert response.status_code == 200, response.text
    return [label["text"] for label in response.json()["labels"]]


def put(client: httpx.Client, uid: str, text: str) -> None:
    assert client.post("/memory/labels", json={"labels": [{"uid": uid, "text": text}]}).status_code == 200


def test_live_labels_are_found_and_removed_and_replaced_ones_are_not(client: httpx.Client) -> None:
    put(client, "whales", "Cook a whale")
    put(client, "topic-2", "Stars")  # was Astronomy
    assert texts(client, "cook") == ["Cooking", "Cook a whale"]
    assert texts(client, "whal") == ["Cook a whale"]
    assert texts(client, "star") == ["Stars"]
    assert texts(client, "topic-2")[0] == "Stars"
    assert texts(client, "Astronomy") == []
    put(client, "whales", "Orcas")
    assert (texts(client, "whale"), texts(client, "orc")) == (["Orcas"], ["Orcas"])  # the first one by its uid
    for uid in ("whales", "topic-2"):
        assert client.delete(f"/memory/labels/{uid}").status_code == 200
    assert texts(client, "orcas") == texts(client, "stars") == texts(client, "topic-2") == []
