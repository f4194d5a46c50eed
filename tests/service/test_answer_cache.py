"""The answer cache returns stored answers for the same request to the same version, and limits their size and age."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.service.options import AnswerOptions
from recollect.service.serving import answer_cache
from recollect.service.serving.answer_cache import LocalAnswerCache, answer_keys
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from tests.service.http_helpers import PATIENCE_SECONDS, serving
from tests.service.light_stores import TOP_K, until_serves
from tests.service.redis_server import RedisServer, needs_redis, replica


def local_cache(max_bytes: int = 1 << 20, seconds: float = 60) -> LocalAnswerCache:
    return LocalAnswerCache(max_bytes, seconds, Metrics())


def test_answers_put_into_the_cache_are_found() -> None:
    cache = local_cache()
    cache.put({b"a": b"1", b"b": b"2"})
    assert cache.get([b"b", b"c", b"a"]) == [b"2", None, b"1"]


def test_least_recently_used_entry_is_removed_first() -> None:
    cache = local_cache(max_bytes=3 * 1300)
    for key in (b"a", b"b", b"c"):
        cache.put({key: bytes(1000)})
    cache.get([b"a"])
    cache.put({b"d": bytes(1000)})
    assert [found is not None for found in cache.get([b"a", b"b", b"c", b"d"])] == [True, False, True, True]


def test_answer_larger_than_the_whole_cache_is_not_cached() -> None:
    cache = local_cache(max_bytes=1000)
    cache.put({b"a": bytes(2000)})
    assert cache.get([b"a"]) == [None]


def test_expired_cache_entry_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(answer_cache.time, "monotonic", lambda: now)
    cache = local_cache(seconds=10)
    cache.put({b"a": b"1"})
    now += 9
    assert cache.get([b"a"]) == [b"1"]
    now += 2
    assert cache.get([b"a"]) == [None]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(max_size=900)), max_size=30))
def test_cache_returns_the_latest_answer_and_stays_within_its_size_limit(puts: list[tuple[bytes, bytes]]) -> None:
    cache, last = local_cache(max_bytes=2000), {}
    for key, answer in puts:
        cache.put({key: answer})
        last[key] = answer
        entries = cache.get([b"a", b"b", b"c", b"d"])
        assert all(found in (None, last.get(key)) for key, found in zip((b"a", b"b", b"c", b"d"), entries, strict=True))
        assert sum(len(found) + 300 for found in entries if found is not None) <= 2000


OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.04, top_b=200, top_k=10)


def test_cache_key_changes_with_every_option_that_changes_an_answer() -> None:
    def keys(version: str, options: AnswerOptions, *queries: str) -> list[bytes]:
        return answer_keys(version, 0, b"", options, queries) or []

    changes: list[dict[str, Any]] = [
        {"lambda_": 0.25},
        {"temperature": 0.05},
        {"top_b": 100},
        {"top_k": 5},
        {"word_weight": 0.1},
        {"threshold": 0.1},
        {"allow": ("x",)},
        {"allow": ()},
        {"deny": ("x",)},
        {"explain": True},
        {"order": "probability"},
        {"min_probability": 0.1},
        {"assign": True},
    ]
    requests: list[tuple[str, AnswerOptions, str]] = [
        ("v1", OPTIONS, "bread"),
        ("v2", OPTIONS, "bread"),
        ("v1", OPTIONS, "bread "),
        ("v1", OPTIONS, ""),
        *(("v1", dataclasses.replace(OPTIONS, **change), "bread") for change in changes),
    ]
    assert len({keys(*request)[0] for request in requests}) == len(requests)
    assert {field.name for field in dataclasses.fields(AnswerOptions)} == {
        name for change in changes for name in change
    }
    assert keys("v1", OPTIONS, "a", "bread") == keys("v1", OPTIONS, "a") + keys("v1", OPTIONS, "bread")


def test_cache_key_does_not_depend_on_the_order_of_labels_in_a_filter() -> None:
    once, twice = (dataclasses.replace(OPTIONS, deny=deny) for deny in (("x", "y"), ("y", "x", "y")))
    assert answer_keys("v1", 0, b"", once, ["bread"]) == answer_keys("v1", 0, b"", twice, ["bread"])


def test_request_with_many_labels_in_its_filter_is_not_looked_up_in_the_cache() -> None:
    options = dataclasses.replace(OPTIONS, allow=tuple(map(str, range(600))), deny=tuple(map(str, range(401))))
    assert answer_keys("v1", 0, b"", options, ["bread"]) is None
    assert answer_keys("v1", 0, b"", dataclasses.replace(options, deny=options.deny[1:]), ["bread"]) is not None


def test_cached_answer_equals_the_computed_answer_and_is_not_used_for_another_version(store: Path) -> None:
    with serving(store, "--poll-seconds", "0.05") as server, httpx.Client(base_url=server.url) as client:

        def ask(**options: object) -> httpx.Response:
            return client.post("/predict", json={"query": "bread", **options}, timeout=PATIENCE_SECONDS)

        computed, cached, explicit = ask(), ask(), ask(top_k=TOP_K["v3"], top_b=200, threshold=0.0, deny=[])
        assert "cache" not in computed.headers["server-timing"]
        for same in (cached, explicit):
            assert same.headers["server-timing"].startswith("cache;dur=")
            assert (same.content, same.headers["x-index-version"]) == (computed.content, "v3")
        for other in (ask(top_k=1), ask(explain=True), ask(deny=["x"]), ask(allow=["x"]), ask(threshold=0.01)):
            assert "cache" not in other.headers["server-timing"]
        batch = client.post("/predict/batch", json={"queries": ["bread", "milk", "bread"]}).json()["results"]
        assert batch[0] == batch[2] == {"labels": computed.json()["labels"]}
        Store(store).activate("v5")
        until_serves(client, "v5")
        assert len(ask().json()["labels"]) == TOP_K["v5"]


def test_cache_of_size_zero_stores_no_answers(store: Path) -> None:
    with serving(store, "--cache-mb", "0") as server:
        for _ in range(2):
            computed = httpx.post(f"{server.url}/predict", json={"query": "bread"})
            assert "cache" not in computed.headers["server-timing"]
        assert json.loads(computed.content)["version"] == "v3"


@needs_redis
def test_cached_answers_of_a_lost_log_are_not_used_when_its_sequence_numbers_are_used_again(
    store: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("writer writer-0123456789abcdef write\n")
    flags = ("--api-keys", str(tmp_path / "keys"), "--writable")

    def change_and_ask(label: str | None) -> httpx.Response:
        with replica(store, redis_server, *flags) as (_, client):
            client.headers["X-API-Key"] = "writer-0123456789abcdef"
            if label is not None:
                put = client.post("/memory/labels", json={"labels": [{"uid": label, "text": "bread"}]})
                assert put.json()["sequence"] == 1
            return client.post("/predict", json={"query": "bread", "top_k": 100})

    lost = change_and_ask("lost")
    assert change_and_ask(None).headers["server-timing"].startswith("cache;dur=")  # the same log in another replica
    shutil.rmtree(store / "memory")
    found = change_and_ask("new").json()
    assert found["sequence"] == lost.json()["sequence"] == 1
    assert "new" in {label["uid"] for label in found["labels"]}
    assert "lost" in {label["uid"] for label in lost.json()["labels"]} - {label["uid"] for label in found["labels"]}
