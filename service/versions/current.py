"""Which version is current: the store says so, and where replicas share a Redis, that does.

Whoever activates a version writes the store first, then Redis. At a replica's first look Redis counts: a store of its
own may be a copy that is behind. From then on it follows whichever of the two has changed since it last looked, Redis
before the store; who finds Redis behind brings it up. So an activation is heard of through either, and neither a Redis
that was away nor one that came back empty undoes what a replica has seen activated meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from service.bundle.manifest import check_version
from service.errors import RedisError, StoreError
from service.redis_client import RedisLink
from service.store.store import Store

# What moves the current version only from where it was seen: another activation may have come first.
_MOVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('PUBLISH', KEYS[1], ARGV[2])
end
"""


class Current(Protocol):
    """Where replicas look for the version to serve."""

    def version(self) -> str | None:
        """The current version; None if none is.

        Raises:
            StoreError: If what is there names no version.
            OSError: If the store cannot be read.
        """

    def require(self) -> str:
        """The current version.

        Raises:
            StoreError: If there is no store or nothing is current.
        """


class StoreCurrent:
    """The store's own word."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> str | None:
        return self._store.current()

    def require(self) -> str:
        return self._store.require_current()


class SharedCurrent:
    """The store's and Redis's."""

    def __init__(self, store: Store, link: RedisLink) -> None:
        self._store, self._link = store, link
        self._key = link.key("current")
        self._in_store: str | None = None
        self._followed: str | None = None
        self._no_news: set[str | None] = {None}  # what Redis held when it was last looked at, or was told since
        self._looked = False

    def version(self) -> str | None:
        in_store = self._stored()
        try:
            in_redis = self._shared()
        except RedisError:
            if in_store != self._in_store:
                self._in_store = self._followed = in_store
            return self._followed
        if in_redis not in self._no_news:
            self._followed = in_redis
        elif in_store != self._in_store:
            self._followed = in_store
        self._in_store, self._no_news, self._looked = in_store, {None, in_redis}, True
        if self._followed is not None and self._followed != in_redis:
            self._bring_up(in_redis, self._followed)
        return self._followed

    def require(self) -> str:
        version = self.version()
        if version is None or version not in self._store.versions():
            version = self._followed = self._store.require_current()
        return version

    def announce(self, version: str) -> None:
        """Make a version current in Redis, whatever was, and tell all who listen.

        Raises:
            RedisError: If Redis does not answer.
        """
        self._link.ask(lambda client: client.pipeline().set(self._key, version).publish(self._key, version).execute())

    def _stored(self) -> str | None:
        """The store's version; while the store cannot be read but Redis can, the last one read."""
        try:
            return self._store.current()
        except (StoreError, OSError):
            if not self._looked:
                raise
            return self._in_store

    def _shared(self) -> str | None:
        found = self._link.ask(lambda client: client.get(self._key))
        if found is None:
            return None
        try:
            return check_version(found.decode(errors="replace"))
        except StoreError:
            raise StoreError(f"Redis, {self._key}: expected a version's name; run `recollect activate`") from None

    def _bring_up(self, seen: str | None, version: str) -> None:
        self._no_news.add(version)
        with contextlib.suppress(RedisError):  # the next look brings it up
            if seen is None:
                self._link.ask(lambda client: client.set(self._key, version, nx=True))
            else:
                self._link.ask(lambda client: client.eval(_MOVE, 1, self._key, seen, version))
