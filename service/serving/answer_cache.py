"""Answers that are kept: the same request to the same version has the same answer, so it need not be made again.

A kept answer is one query's labels as JSON, under a hash of the version, the options and the query. A version never
changes, so that no answer is ever out of date; size and age only bound what is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from service.errors import RedisError
from service.redis_client import RedisClient
from service.telemetry.metrics import Telemetry

# What an entry costs beside its content: a key, a tuple, and their places in the table.
_ENTRY_BYTES = 300
# Of what is kept: another one, and what was kept in Redis before is not found any more.
_FORMAT = 1
# Labels that a request may name and still be looked up: hashing more would cost what it saves.
_MOST_LABELS = 1_000


def answer_keys(
    version: str, options: Callable[[], list[Any]], named: int, queries: Sequence[str]
) -> list[bytes] | None:
    """What the answers to queries are kept under; None where a request names too many labels for that.

    Args:
        version: That answers.
        options: Tells all that decides the answers beside the query, as JSON can hold it.
        named: Uids that the filters name.
        queries: One, or a batch.
    """
    if named > _MOST_LABELS:
        return None
    common = hashlib.blake2b(json.dumps([_FORMAT, version, *options()]).encode(), digest_size=16)
    keys = []
    for query in queries:
        key = common.copy()
        key.update(query.encode())
        keys.append(key.digest())
    return keys


class LocalAnswers:
    """Answers in this process, for its event loop alone: the least recently asked go first, and the old.

    Args:
        most_bytes: They take together.
        seconds: Each is kept.
        telemetry: Told the hits and the size.
    """

    def __init__(self, most_bytes: int, seconds: float, telemetry: Telemetry) -> None:
        self._most_bytes, self._seconds, self._telemetry = most_bytes, seconds, telemetry
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._bytes = 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = [self._get(key) for key in keys]
        self._telemetry.looked_up("local", *_hits_and_misses(found))
        return found

    def put(self, answers: dict[bytes, bytes]) -> None:
        expires = time.monotonic() + self._seconds
        for key, answer in answers.items():
            self._drop(key)
            self._kept[key] = (answer, expires)
            self._bytes += len(answer) + _ENTRY_BYTES
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))
        self._telemetry.cache_bytes.set(self._bytes)

    def _get(self, key: bytes) -> bytes | None:
        answer, expires = self._kept.get(key, (None, 0.0))
        if answer is not None and time.monotonic() >= expires:
            self._drop(key)
            return None
        if answer is not None:
            self._kept.move_to_end(key)
        return answer

    def _drop(self, key: bytes) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._bytes -= len(kept[0]) + _ENTRY_BYTES


class RedisAnswers:
    """Answers that replicas share; Redis's own `maxmemory` bounds them all together."""

    def __init__(self, link: RedisClient, seconds: int, telemetry: Telemetry) -> None:
        self._link, self._seconds, self._telemetry = link, seconds, telemetry

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept; nothing, while Redis does not answer."""
        try:
            told: list[bytes | None] = list(
                await self._link.execute_async(lambda client: client.mget([self._name(key) for key in keys]))
            )
        except RedisError:
            return [None] * len(keys)
        found = [each if each and each.startswith(b'{"labels":[') and each.endswith(b"}") else None for each in told]
        self._telemetry.looked_up("redis", *_hits_and_misses(found))
        return found

    async def put(self, answers: dict[bytes, bytes]) -> None:
        def write(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            for key, answer in answers.items():
                pipeline.set(self._name(key), answer, ex=self._seconds)
            return pipeline.execute()

        try:
            await self._link.execute_async(write)
        except RedisError:
            return

    def _name(self, key: bytes) -> str:
        return self._link.key("answer", key.hex())


class KeptAnswers:
    """Both: a process looks among its own first, then among those that replicas share, where they do."""

    def __init__(self, local: LocalAnswers, shared: RedisAnswers | None) -> None:
        self._local, self._shared = local, shared
        self._writing: set[asyncio.Task[None]] = set()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._local.get(keys)
        lacking = [nth for nth, answer in enumerate(found) if answer is None]
        if self._shared is None or not lacking:
            return found
        shared = await self._shared.get([keys[nth] for nth in lacking])
        for nth, answer in zip(lacking, shared, strict=True):
            found[nth] = answer
        self._local.put({keys[nth]: answer for nth, answer in zip(lacking, shared, strict=True) if answer})
        return found

    def put(self, answers: dict[bytes, bytes]) -> None:
        """Keep answers; who waits for theirs does not wait for this."""
        self._local.put(answers)
        if self._shared:
            task = asyncio.ensure_future(self._shared.put(answers))
            self._writing.add(task)  # the event loop itself would let it be collected before its end
            task.add_done_callback(self._writing.discard)


def _hits_and_misses(found: Sequence[bytes | None]) -> tuple[int, int]:
    misses = sum(answer is None for answer in found)
    return len(found) - misses, misses
