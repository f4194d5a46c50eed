"""The answer cache: if a query and its options are repeated, the same memory gives the same answer.

A cache entry is one query's answer as JSON, under a hash of the version, the last entry of the live memory, the options
and the query. With these, a memory never changes, so a cache entry is never out of date. The limits on size and
age only limit the memory that the cache uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from recollect.core.errors import RedisError
from recollect.core.options import AnswerOptions
from recollect.core.vectors import AnyQuery
from recollect.service.redis_client import RedisClient
from recollect.service.telemetry.metrics import Metrics

# Memory that a cache entry uses in addition to its answer: the key, a tuple, and their places in the hash table.
_ENTRY_BYTES = 300
# Maximum size of an answer in Redis; larger ones are only in the memory of the process. Redis carries out one call
# after another, and a long one delays the rate limits.
_MAX_REDIS_BYTES = 256_000
# Format of cached answers. Raise it when the format changes: old Redis entries are then ignored.
_FORMAT = 5
# Maximum number of labels in the filters of a cached request. With more labels, hashing the filters costs more than the
# cache saves.
_MAX_FILTER_LABELS = 1_000


def answer_keys(
    version: str, sequence: int, digest: bytes, options: AnswerOptions, queries: Sequence[AnyQuery]
) -> list[bytes] | None:
    """The cache keys of queries; None if the filters contain so many labels that the cache would save no time.

    The digest is that of the log up to the entry `sequence`: a log that was restored from a copy can use the number
    again.
    """
    if options.filter_labels > _MAX_FILTER_LABELS:
        return None
    common, keys = _common_key(version, sequence, digest, options), []
    for query in queries:
        key = common.copy()
        # No text in UTF-8 begins with this byte.
        key.update(query.encode() if isinstance(query, str) else b"\xff" + query.content)
        keys.append(key.digest())
    return keys


@functools.lru_cache(maxsize=64)  # most requests have the usual options
def _common_key(version: str, sequence: int, digest: bytes, options: AnswerOptions) -> hashlib.blake2b:
    values = (getattr(options, option.name) for option in dataclasses.fields(options))
    parts = [sorted({*value}) if isinstance(value, tuple) else value for value in values]
    return hashlib.blake2b(json.dumps([_FORMAT, version, sequence, digest.hex(), *parts]).encode(), digest_size=16)


class AnswerCache:
    """Answers in the memory of this process, then in Redis if the replicas share a Redis. Only the event loop uses it.

    The least recently used answers are removed first. Redis's setting `maxmemory` limits the answers there.
    """

    def __init__(self, max_bytes: int, seconds: int, metrics: Metrics, redis: RedisClient | None) -> None:
        self._max_bytes, self._seconds, self._metrics, self._redis = max_bytes, seconds, metrics, redis
        self._entries: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._bytes = 0
        self._writes: set[asyncio.Task[None]] = set()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        answers = [self._get(key) for key in keys]
        self._count("local", answers)
        missing = [row for row, answer in enumerate(answers) if answer is None]
        if self._redis is None or not missing:
            return answers
        shared = await self._read_redis(self._redis, [keys[row] for row in missing])
        for row, answer in zip(missing, shared, strict=True):
            answers[row] = answer
        self._put({keys[row]: answer for row, answer in zip(missing, shared, strict=True) if answer})
        return answers

    def put(self, answers: dict[bytes, bytes]) -> None:
        """Add answers. The write to Redis continues in the background, so that the response does not wait for it."""
        self._put(answers)
        shared = {key: answer for key, answer in answers.items() if len(answer) <= _MAX_REDIS_BYTES}
        if self._redis is not None and shared:
            task = asyncio.ensure_future(self._write_redis(self._redis, shared))
            self._writes.add(task)  # the event loop keeps only a weak reference to a task
            task.add_done_callback(self._writes.discard)

    def _get(self, key: bytes) -> bytes | None:
        answer, expires = self._entries.get(key, (None, 0.0))
        if answer is not None and time.monotonic() >= expires:
            self._remove(key)
            return None
        if answer is not None:
            self._entries.move_to_end(key)
        return answer

    def _put(self, answers: dict[bytes, bytes]) -> None:
        expires = time.monotonic() + self._seconds
        for key, answer in answers.items():
            self._remove(key)
            self._entries[key] = (answer, expires)
            self._bytes += len(answer) + _ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
        self._metrics.cache_bytes.set(self._bytes)

    def _remove(self, key: bytes) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._bytes -= len(entry[0]) + _ENTRY_BYTES

    async def _read_redis(self, redis: RedisClient, keys: Sequence[bytes]) -> list[bytes | None]:
        """Look up answers in Redis. While Redis does not answer, no answers are found."""
        names = [redis.key("answer", key.hex()) for key in keys]
        try:
            answers: list[bytes | None] = await redis.execute_async(lambda client: client.mget(names), "cache_reads")
        except RedisError:
            return [None] * len(keys)
        self._count("redis", answers)
        return answers

    async def _write_redis(self, redis: RedisClient, answers: dict[bytes, bytes]) -> None:
        def write(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            for key, answer in answers.items():
                pipeline.set(redis.key("answer", key.hex()), answer, ex=self._seconds)
            return pipeline.execute()

        with contextlib.suppress(RedisError):
            await redis.execute_async(write, "cache_writes")

    def _count(self, tier: str, answers: Sequence[bytes | None]) -> None:
        misses = sum(answer is None for answer in answers)
        for outcome, count in (("hit", len(answers) - misses), ("miss", misses)):
            if count:
                self._metrics.child(self._metrics.cache_requests, tier, outcome).inc(count)
