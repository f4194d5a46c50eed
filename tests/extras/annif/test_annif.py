"""Annif's REST API: suggestions, asked as Annif's backend `http` asks, and learning, asked as Annif's clients ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import TOPICS
from tests.processes import Server, copy_store, serving
from tests.service.stores import add_version, make_first, with_fields

PROJECT = "/v1/projects/recollect"
QUERY = "How doctors treat high blood pressure"


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--annif", "--max-query-bytes", "64") as server:
        yield server


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client


def test_long_document_is_cut_and_document_without_words_gets_no_suggestion(client: httpx.Client) -> None:
    long = "é" * 31 + " " + "pressure " * 1_000
    assert client.post(f"{PROJECT}/suggest", data={"text": long}).json()["results"]
    assert client.post(f"{PROJECT}/suggest", data={"text": " \n"}).json() == {"results": []}


def test_form_may_encode_each_byte_of_its_text_and_the_last_of_equal_fields_counts(client: httpx.Client) -> None:
    def suggest(content: str) -> httpx.Response:
        return client.post(f"{PROJECT}/suggest", content=content)

    def encoded(text: str) -> str:
        return "".join(f"%{byte:02X}" for byte in text.encode())

    expected = client.post(f"{PROJECT}/suggest", data={"text": QUERY, "limit": 2}).json()
    assert len(expected["results"]) == 2
    limit = f"{encoded('limit')}={encoded('2')}"
    assert suggest(f"text=cats&limit=5&metadata&{limit}&text={QUERY.replace(' ', '+')}").json() == expected
    assert suggest(f"text={encoded(QUERY + ' ' * 60 + chr(0x1F40B) * 80_000)}&{limit}").json() == expected
    assert suggest(f"text={QUERY}&limit").status_code == 422


def test_suggestion_has_the_name_in_a_language_and_the_notation(light_versions: Path, tmp_path: Path) -> None:
    store = copy_store(light_versions, tmp_path / "store")
    fields = {
        label: {
            "name": f"{label}, all",
            "names": {"fi": f"{label} (fi)", "sv-FI": f"{label} (sv)"},
            "notation": label[:2],
        }
        for label in TOPICS
    }
    del fields["Cooking"]
    make_first(store, add_version(store, "v5", "named", with_fields(fields)))

    def pairs(response: httpx.Response) -> set[tuple[str, str, str | None]]:
        return {(each["uri"], each["label"], each["notation"]) for each in response.json()["results"]}

    with serving(store, "--annif") as server:
        vocabulary = server.client.get("/v1/projects/recollect").json()["vocab"]
        assert vocabulary["languages"] == ["fi", "sv-FI"]
        body = {"text": QUERY, "limit": len(TOPICS)}
        for language, end in ((None, ", all"), ("", ", all"), ("FI", " (fi)"), ("sv", ", all"), ("sv-FI-x", " (sv)")):
            sent = body if language is None else body | {"language": language}
            expected = {(label, f"{label}{end}", label[:2]) for label in fields} | {("Cooking", "Cooking", None)}
            assert pairs(server.client.post(f"{PROJECT}/suggest", data=sent)) == expected, language
        query, documents = {"language": "fi", "limit": 1}, {"documents": [{"text": QUERY, "document_id": "1"}]}
        (result,) = server.client.post(f"{PROJECT}/suggest-batch", params=query, json=documents).json()
        assert result["results"][0]["label"].endswith(" (fi)")
        refused = server.client.post(f"{PROJECT}/suggest", data=body | {"language": "en us"})
        assert (refused.status_code, "language" in refused.json()["detail"]) == (422, True)


def test_form_with_too_many_fields_is_refused(client: httpx.Client) -> None:
    response = client.post(f"{PROJECT}/suggest", content="a=1&" * 2_000)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
WHALES = {"uri": "http://example.org/whales", "label": "whales"}
TEXT = "How whales sleep in the ocean"


@pytest.fixture(scope="module")
def writable(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("annif")
    keys = f"writer {WRITER} write\nreader {READER}\n"
    store = copy_store(light_versions, folder / "store")
    with serving(store, "--annif", "--writable", "--max-query-bytes", "64", keys=keys, key=WRITER) as server:
        yield server


class TestLearning:
    @pytest.fixture
    def client(self, writable: Server) -> httpx.Client:
        return writable.client

    def learn(self, client: httpx.Client, *documents: object) -> httpx.Response:
        return client.post(f"{PROJECT}/learn", json=documents)

    def sequence(self, client: httpx.Client) -> int:
        sequence: int = client.get("/memory").json()["sequence"]
        return sequence

    def suggested(self, client: httpx.Client, text: str = TEXT) -> dict[str, str]:
        results = client.post(f"{PROJECT}/suggest", data={"text": text, "limit": 3}).json()["results"]
        return {each["uri"]: each["label"] for each in results}

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

    def test_largest_bodies_that_the_documentation_promises_are_accepted(self, client: httpx.Client) -> None:
        (known, *_) = self.suggested(client)
        rows = [{"uid": f"i{n}", "text": f"text {n}", "labels": [known], "weight": 2.5} for n in range(1_001)]
        for count, status in ((1_000, 200), (1_001, 422)):
            body = {"instances": rows[:count], "create_labels": True}
            assert client.post("/memory/instances", json=body).status_code == status
        subjects = [{"uri": f"http://example.org/{n}", "label": f"label {n}"} for n in range(10)]
        documents = [{"text": f"document {n}", "subjects": subjects} for n in range(1_000)]
        assert self.learn(client, *documents).status_code == 204
        assert client.get("/memory/instances/i999").json()["weight"] == 2.5

    def test_document_without_text_or_subjects_adds_nothing(self, client: httpx.Client) -> None:
        before = self.sequence(client)
        documents = ({"text": " " * 64 + "cut", "subjects": [WHALES]}, {"text": "x"}, {"subjects": [WHALES]})
        assert self.learn(client, *documents).status_code == 204
        assert self.learn(client).status_code == 204
        assert self.sequence(client) == before

    def test_beginning_of_a_document_that_is_too_long_for_an_instance_is_learned(
        self, light_versions: Path, tmp_path: Path
    ) -> None:
        store, keys = copy_store(light_versions, tmp_path / "store"), f"writer {WRITER} write\n"
        flags = ("--annif", "--writable", "--max-query-bytes", "40000")
        with serving(store, *flags, keys=keys, key=WRITER) as server:
            assert self.learn(server.client, {"text": "b" * 30_000, "subjects": [WHALES]}).status_code == 204

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
