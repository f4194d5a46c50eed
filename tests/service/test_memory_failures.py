"""Failures around the live memory of a served store: Redis away, and a replica that was away."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, copy_store
from tests.service.redis_server import RedisServer, needs_redis, replica, until

WRITER = "writer-0123456789abcdef"
TEXT = "How whales sleep in the ocean"


@pytest.fixture
def store(light_versions: Path, tmp_path: Path) -> Path:
    return copy_store(light_versions, tmp_path / "store")


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    keys = tmp_path / "keys"
    keys.write_text(f"writer {WRITER} write\n")
    return ("--api-keys", str(keys), "--writable")


def put_label(url: str, uid: str, text: str = TEXT) -> httpx.Response:
    body = {"labels": [{"uid": uid, "text": text}]}
    return httpx.post(f"{url}/memory/labels", json=body, headers={"X-API-Key": WRITER}, timeout=PATIENCE_SECONDS)


def ask(url: str, **options: Any) -> httpx.Response:
    body = {"query": TEXT, "top_k": 50, **options}
    return httpx.post(f"{url}/predict", json=body, headers={"X-API-Key": WRITER}, timeout=PATIENCE_SECONDS)


def labels(url: str, **options: Any) -> set[str]:
    response = ask(url, **options)
    assert response.status_code == 200, response.text
    return {label["uid"] for label in response.json()["labels"]}


@needs_redis
def test_changes_need_no_redis_and_reach_a_replica_that_was_away(
    store: Path, flags: tuple[str, ...], redis_server: RedisServer
) -> None:
    with (
        replica(store, redis_server, *flags) as (first, _),
        replica(store, redis_server, *flags) as (second, _),
    ):
        redis_server.stop()
        second.process.send_signal(signal.SIGSTOP)
        sequences = [put_label(first.url, f"label {number}").json()["sequence"] for number in range(20)]
        assert sequences == list(range(1, 21))
        second.process.send_signal(signal.SIGCONT)
        # The proxy has sent a write to the replica that was away, and then to the other one.
        rejected = {"query": TEXT, "label": "label 0", "relevant": False}
        headers = {"X-API-Key": WRITER, "Idempotency-Key": "once"}
        second.process.send_signal(signal.SIGSTOP)
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{second.url}/feedback", json=rejected, headers=headers, timeout=0.5)
        answer = httpx.post(f"{first.url}/feedback", json=rejected, headers=headers, timeout=PATIENCE_SECONDS).text
        second.process.send_signal(signal.SIGCONT)
        again = httpx.post(f"{second.url}/feedback", json=rejected, headers=headers, timeout=PATIENCE_SECONDS).text
        assert again == answer
        added = {f"label {number}" for number in range(20)}
        assert added <= labels(second.url, min_sequence=21)
        assert put_label(second.url, "one more").json()["sequence"] == 22
        until(lambda: "one more" in labels(first.url))
