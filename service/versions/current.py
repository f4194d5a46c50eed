"""Reads the current version from the store, and from Redis if the replicas share one.

An activation writes the store first, then Redis. A replica checks both regularly. The first check prefers the version
in Redis, because the replica's own store may be an old copy. Later checks use the version that changed since the check
before, in the store or in Redis; if both changed, the version in Redis. If Redis contains an older version, the replica
writes the new version to Redis. So an activation reaches a replica through the store or through Redis, and a Redis
server that was unreachable or lost its data does not undo the activation.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from service.bundle.manifest import check_version
from service.errors import RedisError, StoreError
from service.redis_client import RedisClient
from service.store.store import Store

# Replace the version only if it is still the version that was read before: another process may have activated a version
# meanwhile.
_COMPARE_AND_SET = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('PUBLISH', KEYS[1], ARGV[2])
end
"""


class Current(Protocol):
    """The source from which a replica reads the version to serve."""

    def version(self) -> str | None:
        """The current version; None if no version is current.

        Raises:
            StoreError: If the content is not the name of a version.
            OSError: If the store cannot be read.
        """

    def require(self) -> str:
        """The current version.

        Raises:
            StoreError: If there is no store or no version is current.
        """


class StoreCurrent:
    """The current version, read only from a store: the replicas share no Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> str | None:
        return self._store.current()

    def require(self) -> str:
        return self._store.require_current()


class SharedCurrent:
    """The current version, read from a store and from Redis."""

    def __init__(self, store: Store, redis_client: RedisClient) -> None:
        self._store, self._redis = store, redis_client
        self._key = redis_client.key("current")
        self._in_store: str | None = None
        self._chosen: str | None = None
        # Versions that are not new when they are read from Redis: the version at the last check, and the versions that
        # this process wrote since then.
        self._seen_in_redis: set[str | None] = {None}
        self._has_checked = False

    def version(self) -> str | None:
        in_store = self._read_store()
        try:
            in_redis = self._read_redis()
        except RedisError:
            if in_store != self._in_store:
                self._in_store = self._chosen = in_store
            return self._chosen
        if in_redis not in self._seen_in_redis:
            self._chosen = in_redis
        elif in_store != self._in_store:
            self._chosen = in_store
        self._in_store, self._seen_in_redis, self._has_checked = in_store, {None, in_redis}, True
        if self._chosen is not None and self._chosen != in_redis:
            self._update_redis(in_redis, self._chosen)
        return self._chosen

    def require(self) -> str:
        version = self.version()
        if version is None or version not in self._store.versions():
            version = self._chosen = self._store.require_current()
        return version

    def announce(self, version: str) -> None:
        """Make a version current in Redis, and notify all subscribers.

        Raises:
            RedisError: If Redis does not answer.
        """
        self._redis.execute(
            lambda client: client.pipeline().set(self._key, version).publish(self._key, version).execute()
        )

    def _read_store(self) -> str | None:
        """The version in the store.

        If the store cannot be read, return the version read last; on the first check, raise the error.
        """
        try:
            return self._store.current()
        except (StoreError, OSError):
            if not self._has_checked:
                raise
            return self._in_store

    def _read_redis(self) -> str | None:
        value = self._redis.execute(lambda client: client.get(self._key))
        if value is None:
            return None
        try:
            return check_version(value.decode(errors="replace"))
        except StoreError:
            raise StoreError(f"Redis, {self._key}: expected a version's name; run `recollect activate`") from None

    def _update_redis(self, old: str | None, version: str) -> None:
        self._seen_in_redis.add(version)
        with contextlib.suppress(RedisError):  # the next check tries again
            if old is None:
                self._redis.execute(lambda client: client.set(self._key, version, nx=True))
            else:
                self._redis.execute(lambda client: client.eval(_COMPARE_AND_SET, 1, self._key, old, version))
