"""Content in Redis is used only if a replica with the shared secret wrote the content under the same name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

import recollect
from recollect.service.authenticated import Authenticator
from recollect.service.redis_client import RedisClient
from recollect.service.serving.answer_cache import RedisAnswerCache
from recollect.service.telemetry.metrics import Metrics
from tests.service.http_helpers import serving
from tests.service.redis_server import SECRET, RedisServer, needs_redis, running_redis

KEYS = [b"key a", b"key b", b"key c"]
HOSTILE = b'{"labels":[{"uid":"x","score":9e999}]}'


def test_sealed_content_opens_under_its_name_with_the_same_secret() -> None:
    sealed = Authenticator(SECRET).seal("name", b"content")
    assert Authenticator(SECRET).open("name", sealed) == b"content"
    assert Authenticator(SECRET).open("name", Authenticator(SECRET).seal("name", b"")) == b""


def test_code_is_the_documented_hmac() -> None:
    import hashlib
    import hmac

    documented = hmac.new(SECRET.encode(), b"\0\0\0\0\0\0\0\4namecontent", hashlib.sha256).digest()
    assert Authenticator(SECRET).seal("name", b"content") == documented + b"content"


def test_content_under_another_name_or_another_secret_is_refused() -> None:
    sealed = Authenticator(SECRET).seal("name", b"content")
    assert Authenticator(SECRET).open("nam", sealed) is None
    assert Authenticator("another secret of a replica").open("name", sealed) is None
    assert Authenticator(SECRET).open("namec", sealed[:32] + b"ontent") is None


@given(st.binary(max_size=100), st.integers(min_value=0), st.integers(0, 7))
def test_content_with_any_changed_bit_or_missing_byte_is_refused(content: bytes, place: int, bit: int) -> None:
    sealed = bytearray(Authenticator(SECRET).seal("name", content))
    assert Authenticator(SECRET).open("name", bytes(sealed[:-1])) is None
    sealed[place % len(sealed)] ^= 1 << bit
    assert Authenticator(SECRET).open("name", bytes(sealed)) is None


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as server:
        yield server


@pytest.fixture
def owner(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A user of Redis who does not know the secret."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def look_up(url: str, prefix: str = "recollect", secret: str = SECRET, **answers: bytes) -> list[bytes | None]:
    """Put answers under the keys a, b and c into the cache, then look up all keys."""

    async def run() -> list[bytes | None]:
        client = RedisClient(url, prefix, secret=secret)
        cache = RedisAnswerCache(client, 60, Metrics())
        await cache.put({f"key {key}".encode(): answer for key, answer in answers.items()} or {b"other": b""})
        try:
            return await cache.get(KEYS)
        finally:
            await client.close()

    return asyncio.run(run())


@needs_redis
@pytest.mark.parametrize("cached", [b"", b"\0", HOSTILE, b"\0" * 32 + HOSTILE, b"\xff" * 1_000_000])
def test_answer_that_a_user_of_redis_wrote_is_never_found(
    redis_server: RedisServer, owner: redis.Redis, cached: bytes
) -> None:
    assert look_up(redis_server.url, a=b"1", b=b"2") == [b"1", b"2", None]
    owner.set(f"recollect:answer:{KEYS[0].hex()}", cached)
    assert look_up(redis_server.url) == [None, b"2", None]


@needs_redis
def test_answers_that_a_user_of_redis_exchanged_truncated_or_moved_are_not_found(
    redis_server: RedisServer, owner: redis.Redis
) -> None:
    look_up(redis_server.url, a=b"1", b=b"2", c=b"34")
    names = [f"recollect:answer:{key.hex()}" for key in KEYS]
    first, second, third = owner.mget(names)  # type: ignore[misc]
    owner.mset({names[0]: second, names[1]: first, names[2]: third[:-1]})
    assert look_up(redis_server.url) == [None, None, None]
    moved = [name.replace("recollect", "staging") for name in names]
    owner.mset(dict(zip(moved, (first, second, third), strict=True)))
    assert look_up(redis_server.url, prefix="staging") == [None, None, None]
    owner.mset(dict(zip(names, (first, second, third), strict=True)))
    assert look_up(redis_server.url, secret="the-secret-of-another-fleet") == [None, None, None]
    assert look_up(redis_server.url) == [b"1", b"2", b"34"]


@needs_redis
def test_key_of_another_redis_type_counts_as_no_answer(redis_server: RedisServer, owner: redis.Redis) -> None:
    look_up(redis_server.url, b=b"2")
    owner.lpush(f"recollect:answer:{KEYS[0].hex()}", HOSTILE)
    assert look_up(redis_server.url) == [None, b"2", None]


@needs_redis
def test_service_computes_an_answer_that_redis_changed_and_logs_the_refusal(
    store: Path, redis_server: RedisServer, owner: redis.Redis
) -> None:
    variables = {"RECOLLECT_REDIS_URL": redis_server.url, "RECOLLECT_REDIS_SECRET": SECRET}
    with serving(store, **variables) as first, serving(store, **variables) as second:
        computed = httpx.post(f"{first.url}/predict", json={"query": "bread"})
        first.wait_for("serving")
        while not (names := list(owner.scan_iter("recollect:answer:*"))):
            pass
        owner.set(names[0], HOSTILE)
        answer = httpx.post(f"{second.url}/predict", json={"query": "bread"})
        assert answer.json() == computed.json()
        assert "cache" not in answer.headers["server-timing"]
        assert "--redis-secret" in second.wait_for("cached_answer_refused")["reason"]
        assert SECRET not in first.log() + second.log()


@needs_redis
def test_replicas_without_a_secret_share_no_answers_and_say_so(store: Path, redis_server: RedisServer) -> None:
    with serving(store, RECOLLECT_REDIS_URL=redis_server.url) as server:
        assert "--redis-secret" in server.wait_for("shared_answer_cache_off")["reason"]
        for timing in ("queue", "cache"):  # the second answer comes from the cache of the process
            answered = httpx.post(f"{server.url}/predict", json={"query": "bread"}).headers["server-timing"]
            assert answered.startswith(timing)
        assert redis_server.client().keys("recollect:answer:*") == []


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--redis-secret", "too-short", "--redis-url", "redis://host"), "16 characters or more, found 9"),
        (("--redis-secret", SECRET), "--redis-secret: needs --redis-url"),
    ],
)
def test_weak_or_useless_secret_is_refused_and_not_printed(
    flags: tuple[str, ...], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recollect.main(["serve", "--store", "nowhere", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert found in line
    assert not any(flag in line for flag in ("too-short", SECRET))
