"""The suggestions of Annif's REST API, asked as Annif's backend `http` asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.http_helpers import Server, serving

PROJECT = "/v1/projects/recollect"
QUERY = "How doctors treat high blood pressure"


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--annif", "--max-query-bytes", "64") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


def test_project_is_listed_and_described(client: httpx.Client) -> None:
    (listed,) = client.get("/v1/projects").json()["projects"]
    described = client.get(PROJECT).json()
    assert listed == described
    assert (described["project_id"], described["is_trained"]) == ("recollect", True)
    assert {"name", "language", "backend", "vocab", "modification_time"} <= set(described)


def test_suggestions_are_the_labels_of_an_answer(client: httpx.Client) -> None:
    labels = client.post("/predict", json={"query": QUERY, "top_k": 2}).json()["labels"]
    response = client.post(f"{PROJECT}/suggest", data={"text": QUERY, "limit": 2, "metadata_title": "x"})
    assert response.json() == {
        "results": [
            {"uri": label["uid"], "label": label["text"], "notation": None, "score": label["score"]} for label in labels
        ]
    }


def test_threshold_and_limit_reduce_the_suggestions(client: httpx.Client) -> None:
    def suggest(**form: object) -> list[dict[str, float]]:
        results: list[dict[str, float]] = client.post(f"{PROJECT}/suggest", data={"text": QUERY, **form}).json()[
            "results"
        ]
        return results

    everything = suggest()
    assert len(everything) > 1
    assert suggest(limit=0) == []
    assert suggest(limit=1_000_000) == everything[: len(suggest(limit=1_000_000))]
    least = everything[1]["score"]
    assert suggest(threshold=least) == [each for each in everything if each["score"] >= least]


def test_long_document_is_cut_and_document_without_words_gets_no_suggestion(client: httpx.Client) -> None:
    long = "é" * 31 + " " + "pressure " * 1_000
    assert client.post(f"{PROJECT}/suggest", data={"text": long}).json()["results"]
    assert client.post(f"{PROJECT}/suggest", data={"text": " \n"}).json() == {"results": []}


def test_batch_is_answered_in_order_with_the_ids_of_its_documents(client: httpx.Client) -> None:
    documents = [{"text": QUERY, "document_id": "a"}, {"text": ""}, {"text": "football", "metadata": {"title": "x"}}]
    response = client.post(f"{PROJECT}/suggest-batch?limit=1", json={"documents": documents})
    first, second, third = response.json()
    one = client.post(f"{PROJECT}/suggest", data={"text": QUERY, "limit": 1}).json()
    assert first == {**one, "document_id": "a"}
    assert second == {"results": [], "document_id": None}
    assert len(third["results"]) == 1


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/v1/projects/other", 404, "expected 'recollect'"),
        (f"{PROJECT}/suggest", 405, "Method"),
        ("/v1/vocabs", 404, "Not Found"),
    ],
)
def test_unknown_path_or_project_is_a_problem(client: httpx.Client, path: str, status: int, detail: str) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert detail in response.json()["detail"]


@pytest.mark.parametrize(
    "form",
    [{}, {"text": "x", "limit": "-1"}, {"text": "x", "limit": "many"}, {"text": "x", "threshold": "2"}],
)
def test_wrong_form_is_refused(client: httpx.Client, form: dict[str, str]) -> None:
    assert client.post(f"{PROJECT}/suggest", data=form).json()["code"] == "invalid_request"


def test_form_with_too_many_fields_is_refused(client: httpx.Client) -> None:
    response = client.post(f"{PROJECT}/suggest", content="a=1&" * 2_000)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_too_many_documents_are_refused(client: httpx.Client) -> None:
    response = client.post(f"{PROJECT}/suggest-batch", json={"documents": [{"text": "x"}] * 33})
    assert response.status_code == 422


def test_api_is_absent_by_default(light_versions: Path) -> None:
    with serving(light_versions) as server:
        assert httpx.get(f"{server.url}/v1/projects").status_code == 404
