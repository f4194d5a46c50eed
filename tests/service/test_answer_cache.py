"""The answer cache returns stored answers for the same request to the same version, and limits their size and age."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from recollect.core.options import AnswerOptions
from recollect.service.serving.answer_cache import answer_keys
from recollect.store.store import Store
from tests.processes import serving, until
from tests.service.redis_server import RedisServer, needs_redis, replica
from tests.service.stores import TOP_K, until_serves

OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.04, top_b=200, top_k=10)


def other_value(value: Any) -> Any:
    """Another value of an option."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else ("x",) if value in (None, ()) else f"no {value}"


def test_cache_key_changes_with_every_option_that_changes_an_answer() -> None:
    def keys(version: str, options: AnswerOptions, *queries: str) -> list[bytes]:
        return answer_keys(version, 0, b"", options, queries) or []

    changes = [
        *({each.name: other_value(getattr(OPTIONS, each.name))} for each in dataclasses.fields(AnswerOptions)),
        {"allow": ()},
    ]
    requests: list[tuple[str, AnswerOptions, str]] = [
        ("v1", OPTIONS, "bread"),
        ("v2", OPTIONS, "bread"),
        ("v1", OPTIONS, "bread "),
        ("v1", OPTIONS, ""),
        *(("v1", dataclasses.replace(OPTIONS, **change), "bread") for change in changes),
    ]
    assert len({keys(*request)[0] for request in requests}) == len(requests)
    assert keys("v1", OPTIONS, "a", "bread") == keys("v1", OPTIONS, "a") + keys("v1", OPTIONS, "bread")


def test_cached_answer_equals_the_computed_answer_and_is_not_used_for_another_version(store: Path) -> None:
    with serving(store, "--poll-seconds", "0.05") as server:
        client, ask = server.client, partial(server.ask, "bread")
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


@needs_redis
def test_cached_answers_of_a_lost_log_are_not_used_when_its_sequence_numbers_are_used_again(
    store: Path, redis_server: RedisServer
) -> None:
    key = "writer-0123456789abcdef"

    def change_and_ask(label: str | None) -> httpx.Response:
        with replica(store, redis_server, "--writable", keys=f"writer {key} write\n", key=key) as (server, _):
            if label is not None:
                assert server.put_label(label, "bread").json()["sequence"] == 1
            answer = server.ask("bread", top_k=100)
            until(cached_keys)  # an answer is written after it is sent
            return answer

    def cached_keys() -> set[str]:
        return {*redis_server.client().keys("recollect:answer:*")}

    lost, keys = change_and_ask("lost"), cached_keys()
    assert change_and_ask(None).content == lost.content
    assert cached_keys() == keys  # the same log in another replica: the same key
    shutil.rmtree(store / "memory")
    found = change_and_ask("new").json()
    assert found["sequence"] == lost.json()["sequence"] == 1
    assert "new" in {label["uid"] for label in found["labels"]}
    assert "lost" in {label["uid"] for label in lost.json()["labels"]} - {label["uid"] for label in found["labels"]}
