"""The current version: read from the store, and from Redis where replicas share one.

An activation writes the store first, then Redis. A replica's first look prefers Redis, because its own store may be
an old copy. Later looks follow the one of the two that changed since the last look; Redis wins if both changed. A
replica that finds an old version in Redis writes the new one. So an activation reaches a replica through the store or
through Redis, and a Redis that was unreachable or restarted empty does not undo it.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from service.bundle.manifest import check_version
from service.errors import RedisError, StoreError
from service.redis_client import RedisClient
from service.store.store import Store

# Set the version only if it is still the one that was read: another activation may have come first.
_COMPARE_AND_SET = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('PUBLISH', KEYS[1], ARGV[2])
end
"""


class Current(Protocol):
    """The place where replicas read the version to serve."""

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
    """The current version of a store that replicas do not share through Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> str | None:
        return self._store.current()

    def require(self) -> str:
        return self._store.require_current()


class SharedCurrent:
    """The current version of a store and of Redis together."""

    def __init__(self, store: Store, redis_client: RedisClient) -> None:
        self._store, self._redis = store, redis_client
        self._key = redis_client.key("current")
        self._in_store: str | None = None
        self._followed: str | None = None
        # Versions in Redis that are not new: the one at the last look, and the ones that this process wrote since.
        self._seen_in_redis: set[str | None] = {None}
        self._has_looked = False

    def version(self) -> str | None:
        in_store = self._read_store()
        try:
            in_redis = self._read_redis()
        except RedisError:
            if in_store != self._in_store:
                self._in_store = self._followed = in_store
            return self._followed
        if in_redis not in self._seen_in_redis:
            self._followed = in_redis
        elif in_store != self._in_store:
            self._followed = in_store
        self._in_store, self._seen_in_redis, self._has_looked = in_store, {None, in_redis}, True
        if self._followed is not None and self._followed != in_redis:
            self._update_redis(in_redis, self._followed)
        return self._followed

    def require(self) -> str:
        version = self.version()
        if version is None or version not in self._store.versions():
            version = self._followed = self._store.require_current()
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
        """The version in the store; after the first look, the last version read if the store cannot be read."""
        try:
            return self._store.current()
        except (StoreError, OSError):
            if not self._has_looked:
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
        with contextlib.suppress(RedisError):  # the next look tries again
            if old is None:
                self._redis.execute(lambda client: client.set(self._key, version, nx=True))
            else:
                self._redis.execute(lambda client: client.eval(_COMPARE_AND_SET, 1, self._key, old, version))
