"""Leases: a retired version stays open until its last lease is released; then the version is closed and unmapped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from recollect.core.predictor import Predictor
from recollect.service.versions.open_versions import OpenVersions


class Closeable:
    """A predictor that only records whether it was closed."""

    closed, version = False, "v1"

    def close(self) -> None:
        self.closed = True


def test_no_thread_ever_holds_a_lease_of_a_closed_version() -> None:
    versions, stopped = OpenVersions(), threading.Event()
    versions.make_current(cast(Predictor, Closeable()))

    def use() -> int:
        used = 0
        while not used or not stopped.is_set():
            with versions.lease() as predictor, versions.lease().share() as shared:
                assert not cast(Any, predictor).closed
                assert not cast(Any, shared).closed
                used += 1
        return used

    with ThreadPoolExecutor(4) as pool:
        users = [pool.submit(use) for _ in range(4)]
        for _ in range(2_000):
            versions.make_current(cast(Predictor, Closeable()))
            versions.close_unused()
        stopped.set()
        assert all(user.result() for user in users)
