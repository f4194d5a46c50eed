"""Answers that are kept: for the same request to the same version alone, within a size and an age."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.serving import answer_cache
from service.serving.answer_cache import LocalAnswers, answer_keys
from service.store.store import Store
from service.telemetry.metrics import Telemetry
from tests.service.http_helpers import PATIENCE_SECONDS, serving
from tests.service.light_stores import TOP_K, until_serves


def a_cache(most_bytes: int = 1 << 20, seconds: float = 60) -> LocalAnswers:
    return LocalAnswers(most_bytes, seconds, Telemetry())


def test_what_was_put_is_what_is_found() -> None:
    answers = a_cache()
    answers.put({b"a": b"1", b"b": b"2"})
    assert answers.get([b"b", b"c", b"a"]) == [b"2", None, b"1"]


def test_the_least_recently_asked_go_first() -> None:
    answers = a_cache(most_bytes=3 * 1300)
    for key in (b"a", b"b", b"c"):
        answers.put({key: bytes(1000)})
    answers.get([b"a"])
    answers.put({b"d": bytes(1000)})
    assert [found is not None for found in answers.get([b"a", b"b", b"c", b"d"])] == [True, False, True, True]


def test_an_answer_larger_than_all_that_is_kept_is_not_kept() -> None:
    answers = a_cache(most_bytes=1000)
    answers.put({b"a": bytes(2000)})
    assert answers.get([b"a"]) == [None]


def test_the_old_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(answer_cache.time, "monotonic", lambda: now)
    answers = a_cache(seconds=10)
    answers.put({b"a": b"1"})
    now += 9
    assert answers.get([b"a"]) == [b"1"]
    now += 2
    assert answers.get([b"a"]) == [None]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(max_size=900)), max_size=30))
def test_what_is_found_is_what_was_put_last_and_the_size_holds(puts: list[tuple[bytes, bytes]]) -> None:
    answers, last = a_cache(most_bytes=2000), {}
    for key, answer in puts:
        answers.put({key: answer})
        last[key] = answer
        kept = answers.get([b"a", b"b", b"c", b"d"])
        assert all(found in (None, last.get(key)) for key, found in zip((b"a", b"b", b"c", b"d"), kept, strict=True))
        assert sum(len(found) + 300 for found in kept if found is not None) <= 2000


def test_a_key_tells_apart_all_that_decides_an_answer() -> None:
    def keys(version: str, options: list[Any], *queries: str) -> list[bytes]:
        return answer_keys(version, lambda: options, 0, queries) or []

    requests: list[tuple[str, list[Any], str]] = [
        ("v1", [0.5, None], "bread"),
        ("v2", [0.5, None], "bread"),
        ("v1", [0.25, None], "bread"),
        ("v1", [0.5, ["x"]], "bread"),
        ("v1", [0.5, None], "bread "),
        ("v1", [0.5, None], ""),
    ]
    assert len({keys(*request)[0] for request in requests}) == len(requests)
    assert keys("v1", [0.5], "a", "bread") == keys("v1", [0.5], "a") + keys("v1", [0.5], "bread")


def test_a_request_that_names_many_labels_is_not_looked_up() -> None:
    def not_told() -> list[Any]:
        raise AssertionError("sorting so many names costs what it would save")

    assert answer_keys("v1", not_told, 1001, ["bread"]) is None


def test_what_is_kept_is_what_was_answered_and_goes_with_its_version(store: Path) -> None:
    with serving(store, "--poll-seconds", "0.05") as server, httpx.Client(base_url=server.url) as client:

        def ask(**options: object) -> httpx.Response:
            return client.post("/predict", json={"query": "bread", **options}, timeout=PATIENCE_SECONDS)

        made, kept, said = ask(), ask(), ask(top_k=TOP_K["v3"], top_b=200, threshold=0.0, deny=[])
        assert "cache" not in made.headers["server-timing"]
        for same in (kept, said):
            assert same.headers["server-timing"].startswith("cache;dur=")
            assert (same.content, same.headers["x-index-version"]) == (made.content, "v3")
        for other in (ask(top_k=1), ask(explain=True), ask(deny=["x"]), ask(allow=["x"]), ask(threshold=0.01)):
            assert "cache" not in other.headers["server-timing"]
        batch = client.post("/predict/batch", json={"queries": ["bread", "milk", "bread"]}).json()["results"]
        assert batch[0] == batch[2] == {"labels": made.json()["labels"]}
        Store(store).activate("v5")
        until_serves(client, "v5")
        assert len(ask().json()["labels"]) == TOP_K["v5"]


def test_without_room_nothing_is_kept(store: Path) -> None:
    with serving(store, "--cache-mb", "0") as server:
        for _ in range(2):
            made = httpx.post(f"{server.url}/predict", json={"query": "bread"})
            assert "cache" not in made.headers["server-timing"]
        assert json.loads(made.content)["version"] == "v3"
