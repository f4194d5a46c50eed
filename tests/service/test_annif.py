"""Annif's REST API: suggestions, asked as Annif's backend `http` asks, and learning, asked as Annif's clients ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.http_helpers import Server, copy_store, serving

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


WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
WHALES = {"uri": "http://example.org/whales", "label": "whales"}
TEXT = "How whales sleep in the ocean"


@pytest.fixture(scope="module")
def writable(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("annif")
    (folder / "keys").write_text(f"writer {WRITER} write\nreader {READER}\n")
    store = copy_store(light_versions, folder / "store")
    flags = ("--annif", "--writable", "--api-keys", str(folder / "keys"), "--max-query-bytes", "64")
    with serving(store, *flags) as server:
        yield server


class TestLearning:
    @pytest.fixture
    def client(self, writable: Server) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=writable.url, headers={"X-API-Key": WRITER}, timeout=30) as client:
            yield client

    def learn(self, client: httpx.Client, *documents: object) -> httpx.Response:
        return client.post(f"{PROJECT}/learn", json=documents)

    def sequence(self, client: httpx.Client) -> int:
        sequence: int = client.get("/memory").json()["sequence"]
        return sequence

    def suggested(self, client: httpx.Client, text: str = TEXT) -> dict[str, str]:
        results = client.post(f"{PROJECT}/suggest", data={"text": text, "limit": 3}).json()["results"]
        return {each["uri"]: each["label"] for each in results}

    def test_learned_documents_are_suggested_from_and_an_unknown_subject_becomes_a_label(
        self, client: httpx.Client
    ) -> None:
        known = [*self.suggested(client)][0]
        other = {"text": "A quite different text", "subjects": [{"uri": known}], "metadata": {"title": "x"}}
        response = self.learn(client, {"text": TEXT, "subjects": [WHALES]}, other)
        assert (response.status_code, response.content) == (204, b"")
        assert self.suggested(client).items() >= {WHALES["uri"]: "whales"}.items()
        assert known in self.suggested(client, "A quite different text")

    def test_new_subject_needs_its_name_in_one_of_the_documents(self, client: httpx.Client) -> None:
        seals = {"uri": "http://example.org/seals", "label": "seals"}
        documents = (
            {"text": "seals", "subjects": [seals]},
            {"text": "seals sleep", "subjects": [{"uri": seals["uri"]}]},
        )
        assert self.learn(client, *documents).status_code == 204
        assert self.suggested(client, "seals")[seals["uri"]] == "seals"

    def test_document_that_is_learned_again_replaces_its_subjects(self, client: httpx.Client) -> None:
        first, second = self.suggested(client, QUERY), {"text": QUERY, "subjects": [WHALES]}
        self.learn(client, {"text": QUERY, "subjects": [{"uri": uri} for uri in first]}, second)
        before = client.get("/memory").json()["instances"]
        assert self.learn(client, second).status_code == 204
        assert client.get("/memory").json()["instances"] == before
        assert [*self.suggested(client, QUERY)][0] == WHALES["uri"]

    def test_document_without_text_or_subjects_adds_nothing(self, client: httpx.Client) -> None:
        before = self.sequence(client)
        documents = ({"text": " " * 64 + "cut", "subjects": [WHALES]}, {"text": "x"}, {"subjects": [WHALES]})
        assert self.learn(client, *documents).status_code == 204
        assert self.learn(client).status_code == 204
        assert self.sequence(client) == before

    @pytest.mark.parametrize(
        ("body", "detail"),
        [
            ([{"text": "x", "subjects": [{"uri": "http://example.org/nameless"}]}], "example.org/nameless"),
            ([{"text": "x", "subjects": [{"label": "whales"}]}], "uri"),
            ([{"text": "x", "subjects": ["http://example.org/whales"]}], "subjects"),
            ({"documents": []}, "valid array"),
            ([{"text": "x", "subjects": []}] * 1_001, "at most 1000 items"),
        ],
    )
    def test_wrong_document_is_refused_and_no_document_is_learned(
        self, client: httpx.Client, body: object, detail: str
    ) -> None:
        before = self.sequence(client)
        response = client.post(f"{PROJECT}/learn", json=body)
        assert response.status_code == 422
        assert detail in response.text
        assert self.sequence(client) == before

    def test_learning_needs_a_key_with_the_scope_write(self, client: httpx.Client) -> None:
        document = {"text": TEXT, "subjects": [WHALES]}
        client.headers["X-API-Key"] = READER
        response = self.learn(client, document)
        assert (response.status_code, response.json()["code"]) == (403, "no_write_scope")
        client.headers["X-API-Key"] = "unknown"
        assert self.learn(client, document).status_code == 401
        assert client.post("/v1/projects/other/learn", json=[]).status_code == 401


def test_read_only_service_refuses_to_learn(client: httpx.Client) -> None:
    response = client.post(f"{PROJECT}/learn", json=[{"text": TEXT, "subjects": [WHALES]}])
    assert (response.status_code, response.json()["code"]) == (403, "read_only")


def test_api_is_absent_by_default(light_versions: Path) -> None:
    with serving(light_versions) as server:
        assert httpx.get(f"{server.url}/v1/projects").status_code == 404
