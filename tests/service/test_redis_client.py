"""Replicas that share a real Redis server: cached answers, rate limits, and failures of Redis."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import httpx
import pytest
import redis

from recollect.core.errors import RedisError
from recollect.service.redis_client import RedisClient
from recollect.service.serving.answer_cache import AnswerCache
from recollect.service.telemetry.metrics import Metrics
from recollect.store.store import Store
from tests import processes
from tests.processes import PATIENCE_SECONDS, metric, until
from tests.service.redis_server import (
    NEVER_POLLS,
    PASSWORD,
    RedisServer,
    forwarding,
    needs_redis,
    replica,
    running_redis,
)
from tests.service.stores import TOP_K, until_serves

pytestmark = needs_redis

POLLS = ("--poll-seconds", "0.05")
KEY = "front-0123456789abcdef"
REQUEST_SECONDS = 3.0  # a busy machine may need more than the default


def test_redis_that_hangs_delays_requests_only_briefly(store: Path, redis_server: RedisServer) -> None:
    with replica(store, redis_server, *NEVER_POLLS, RECOLLECT_REDIS_MS="50") as (server, client):
        redis_server.suspend()
        for number in range(5):
            assert client.post("/predict", json={"query": f"bread {number}"}).status_code == 200
        server.wait_for("redis_down")
        assert len(server.events("redis_down")) == 1


def test_cached_answers_are_shared_between_replicas(store: Path, redis_server: RedisServer) -> None:
    with replica(store, redis_server, *POLLS) as (_, first), replica(store, redis_server, *POLLS) as (_, second):
        computed = first.post("/predict", json={"query": "bread", "top_k": 2})
        until(lambda: redis_server.client().keys("recollect:answer:*"))
        cached = second.post("/predict", json={"query": "bread", "top_k": 2})
        assert cached.headers["server-timing"].startswith("cache;")
        assert (cached.json(), cached.headers["x-index-version"]) == (computed.json(), "v3")
        assert metric(second, 'recollect_cache_requests_total{outcome="hit",tier="redis"}') == 1
        assert 0 < redis_server.client().ttl(redis_server.client().keys("recollect:answer:*")[0]) <= 600
        Store(store).activate("v5")
        until_serves(second, "v5")
        assert len(second.post("/predict", json={"query": "bread"}).json()["labels"]) == TOP_K["v5"]


def test_rate_limit_counts_all_replicas_with_redis_and_each_replica_without_redis(
    store: Path, redis_server: RedisServer
) -> None:
    flags, keys = (*POLLS, "--max-batch", "4"), {"keys": f"front {KEY} 0.01\n", "key": KEY}
    with (
        replica(store, redis_server, *flags, **keys) as (_, first),
        replica(store, redis_server, *flags, **keys) as (_, second),
    ):

        def ask(client: httpx.Client) -> httpx.Response:
            return client.post("/predict", json={"query": "bread"})

        statuses = [ask((first, second)[nth % 2]).status_code for nth in range(10)]
        assert statuses == [200] * 4 + [429] * 6
        assert int(ask(first).headers["retry-after"]) >= 1
        redis_server.stop()
        assert 200 in [ask(first).status_code for _ in range(3)]


def test_redis_that_refuses_writes_degrades_the_service_until_it_accepts_them(
    store: Path, redis_server: RedisServer
) -> None:
    flags, keys = (*POLLS, "--max-batch", "4"), {"keys": f"front {KEY} 0.01\n", "key": KEY}
    with redis_server.client() as owner, replica(store, redis_server, *flags, **keys) as (server, client):

        def degraded_by(reason: str) -> bool:
            return reason in str(client.get("/health/ready").json().get("degraded"))

        connections = owner.info("stats")["total_connections_received"]
        owner.replicaof("127.0.0.1", "1")
        until(lambda: degraded_by("Redis refuses a command: ReadOnlyError"))
        assert metric(client, 'recollect_redis_up{use="reports"}') == 0
        asked = [client.post("/predict", json={"query": f"bread {n}"}).status_code for n in range(8)]
        assert (asked[:4], asked[-1]) == ([200] * 4, 429)  # the limit of this replica
        until(lambda: owner.info("stats")["total_connections_received"] > connections + 6)  # to find the new primary
        owner.replicaof("NO", "ONE")
        owner.config_set("maxmemory", "1")
        until(lambda: degraded_by("OutOfMemoryError"))
        output = client.get("/health/ready").text + server.log()
        assert all(secret not in output for secret in ("bread", "Cooking", str(redis_server.port)))
        assert metric(client, "recollect_redis_errors_total") >= 1
        owner.config_set("maxmemory", "0")
        owner.execute_command("ACL", "SETUSER", "default", "-hset")
        until(lambda: degraded_by("NoPermissionError"))
        owner.execute_command("ACL", "SETUSER", "default", "+hset")
        until(lambda: "degraded" not in client.get("/health/ready").json())
        assert metric(client, 'recollect_redis_up{use="reports"}') == 1


def test_requests_follow_a_failover_of_redis(store: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    flags, keys = (*NEVER_POLLS, "--max-batch", "4", "--redis-ms", "5000"), {"keys": f"front {KEY} 1\n", "key": KEY}
    with contextlib.ExitStack() as stack:
        new_server = stack.enter_context(running_redis(tmp_path))
        old, new = stack.enter_context(redis_server.client()), stack.enter_context(new_server.client())
        forwarder = stack.enter_context(forwarding(redis_server.port))
        url = f"redis://:{PASSWORD}@127.0.0.1:{forwarder.server_address[1]}/0"
        server = stack.enter_context(processes.serving(store, *flags, RECOLLECT_REDIS_URL=url, **keys))
        numbers = itertools.count()

        def until_written(target: redis.Redis) -> None:
            """Ask until a Redis server has an answer, the used rate and a report."""
            names = ("recollect:answer:*", "recollect:rate:front", "recollect:reports")
            until(lambda: server.ask(f"bread {next(numbers)}") and all(target.keys(name) for name in names))

        until_written(old)
        forwarder.target = new_server.port
        old.replicaof("127.0.0.1", new_server.port)
        until_written(new)
        until(lambda: "degraded" not in server.client.get("/health/ready").json())
        assert server.wait_for("redis_down")["error"] == "Redis refuses a command: ReadOnlyError"


def test_problem_of_requests_stays_visible_while_the_reports_succeed(store: Path, redis_server: RedisServer) -> None:
    flags, keys = (*POLLS, "--max-batch", "4"), {"keys": f"front {KEY} 1\n", "key": KEY}
    with redis_server.client() as owner, replica(store, redis_server, *flags, **keys) as (server, client):
        owner.execute_command("ACL", "SETUSER", "default", "-eval")
        client.post("/predict", json={"query": "bread"})
        written = owner.hgetall("recollect:reports")
        until(lambda: owner.hgetall("recollect:reports") != written)  # a report succeeds meanwhile
        reason = "rate_limits: Redis refuses a command: NoPermissionError"
        assert client.get("/health/ready").json()["degraded"] == [reason]
        assert metric(client, 'recollect_redis_up{use="rate_limits"}') == 0
        assert metric(client, 'recollect_redis_up{use="reports"}') == 1
        owner.execute_command("ACL", "SETUSER", "default", "+eval")
        until(lambda: "degraded" not in client.get("/health/ready").json())
        server.wait_for("redis_up")


@pytest.mark.parametrize("url", ["redis://:wrong-password@127.0.0.1:{port}", "redis://127.0.0.1:{port}"])
def test_wrong_redis_password_is_refused_at_the_start_and_never_printed(
    store: Path, redis_server: RedisServer, url: str
) -> None:
    url = url.format(port=redis_server.port)
    refused = processes.run("serve", "--store", store, "--port", 0, "--redis-url", url, status=2)
    assert refused.stderr.splitlines() == [
        "recollect serve: --redis-url: Redis does not accept its user and password; correct them"
    ]


@pytest.mark.parametrize("url", ["http://x:secret-word@host", "redis://user:secret/word@host:6379", "secret-word"])
def test_malformed_redis_url_is_refused_and_not_printed(store: Path, url: str) -> None:
    error = processes.run("activate", "v5", "--store", store, "--redis-url", url, status=2).stderr
    assert "--redis-url: expected redis://" in error
    assert "secret" not in error


def test_answers_above_256_kb_stay_in_the_process(redis_server: RedisServer) -> None:
    small, large = b"x" * 256_000, b"x" * 256_001

    async def cached() -> list[bytes | None]:
        client = RedisClient(redis_server.url, "recollect", request_seconds=REQUEST_SECONDS)
        cache = AnswerCache(1 << 20, 600, Metrics(with_redis=True), client)
        cache.put({b"s": small, b"l": large})
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not redis_server.client().keys("recollect:answer:*"):
                await asyncio.sleep(0.01)
        found = await cache.get([b"s", b"l"])
        await client.close()
        return found

    assert asyncio.run(cached()) == [small, large]
    assert redis_server.client().keys("recollect:answer:*") == [f"recollect:answer:{b's'.hex()}"]


def test_slow_cache_write_changes_no_other_use_of_redis(redis_server: RedisServer) -> None:
    async def count_while_writes_hang() -> tuple[list[int], list[str]]:
        client = RedisClient(redis_server.url, "recollect", request_seconds=REQUEST_SECONDS)
        counted = []
        for _ in range(3):
            counted.append(await client.execute_async(lambda redis_client: redis_client.incr("used"), "rate_limits"))
            with contextlib.suppress(RedisError):  # skipped after the first one
                await client.execute_async(lambda redis_client: redis_client.blpop("nothing", 10), "cache_writes")
        problems = client.problems
        await client.close()
        return counted, problems

    counted, problems = asyncio.run(count_while_writes_hang())
    assert counted == [1, 2, 3]
    assert problems == ["cache_writes: Redis does not answer: it takes too long"]
