"""Leases: a retired version stays open until its last lease is released; then the version is closed and unmapped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from recollect.service.errors import NotReadyError, VersionNotOpenError
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.service.versions.open_versions import OpenVersions
from tests.service.http_helpers import copy_store


class Closeable:
    """A predictor that only records whether it was closed."""

    closed = False

    def __init__(self, version: str = "v1") -> None:
        self.version = version

    def close(self) -> None:
        self.closed = True


def versions_of(*predictors: Closeable) -> OpenVersions:
    versions = OpenVersions()
    for predictor in predictors:
        versions.replace(cast(Predictor, predictor))
    return versions


def test_no_version_can_be_leased_before_the_first_one_is_open() -> None:
    with pytest.raises(NotReadyError):
        OpenVersions().lease()


def test_current_version_stays_open_even_without_leases() -> None:
    current = Closeable()
    versions = versions_of(current)
    versions.lease().release()
    assert versions.close_unused() == []
    assert not current.closed


def test_previous_version_stays_open_as_the_standby_until_the_next_swap() -> None:
    first, second, third = Closeable(), Closeable(), Closeable()
    versions = versions_of(first, second)
    assert versions.close_unused() == []
    versions.replace(cast(Predictor, third))
    assert (len(versions.close_unused()), first.closed, second.closed) == (1, True, False)
    versions.exchange_with_standby()
    assert versions.lease().predictor is second
    assert (len(versions.close_unused()), third.closed) == (0, False)
    assert versions.retire_standby()
    assert not versions.retire_standby()
    assert (len(versions.close_unused()), third.closed) == (1, True)


def test_retired_version_is_closed_after_its_last_lease_is_released() -> None:
    old, new = Closeable(), Closeable()
    versions = versions_of(old)
    first, second = versions.lease(), versions.lease()
    versions.replace(cast(Predictor, new))
    versions.retire_standby()
    assert versions.lease().predictor is new
    first.release()
    assert (len(versions.close_unused()), old.closed) == (0, False)
    with second as predictor:
        assert predictor is old
    assert (len(versions.close_unused()), old.closed, new.closed) == (1, True, False)
    assert versions.close_unused() == []


def test_second_lease_from_share_keeps_the_version_open_after_the_first_is_released() -> None:
    old = Closeable()
    versions = versions_of(old)
    lease = versions.lease()
    shared = lease.share()
    lease.release()
    versions.replace(cast(Predictor, Closeable()))
    versions.retire_standby()
    assert versions.close_unused() == []
    assert shared.predictor is old
    shared.release()
    assert len(versions.close_unused()) == 1


def test_released_lease_cannot_be_shared_and_its_second_release_does_nothing() -> None:
    old = Closeable()
    versions = versions_of(old)
    lease, other = versions.lease(), versions.lease()
    lease.release()
    lease.release()
    with pytest.raises(ValueError, match="found a released lease"):
        lease.share()
    versions.replace(cast(Predictor, Closeable()))
    versions.retire_standby()
    assert versions.close_unused() == []
    other.release()
    assert len(versions.close_unused()) == 1


def test_any_open_version_can_be_leased_by_its_name() -> None:
    first, second, third = Closeable("v1"), Closeable("v2"), Closeable("v3")
    versions = versions_of(first, second)
    versions.add_candidate(cast(Predictor, third))
    assert versions.names() == ["v2", "v3", "v1"]
    assert versions.lease().predictor is second
    for predictor in (first, second, third):
        with versions.lease(predictor.version) as found:
            assert found is predictor
    with pytest.raises(VersionNotOpenError) as refused:
        versions.lease("v4")
    assert refused.value.open_versions == ["v2", "v3", "v1"]


def test_candidate_becomes_current_and_a_retired_candidate_is_closed() -> None:
    first, second, third = Closeable("v1"), Closeable("v2"), Closeable("v3")
    versions = versions_of(first)
    versions.add_candidate(cast(Predictor, second))
    versions.make_candidate_current()
    assert versions.names() == ["v2", "v1"]
    versions.add_candidate(cast(Predictor, first))  # the standby
    assert versions.names() == ["v2", "v1"]
    assert versions.standby is None
    assert versions.retire_candidate()
    assert (versions.close_unused(), first.closed) == (["v1"], True)
    versions.add_candidate(cast(Predictor, third))
    assert versions.close_unused() == []


def test_no_thread_ever_holds_a_lease_of_a_closed_version() -> None:
    versions, stopped = versions_of(Closeable()), threading.Event()

    def use() -> int:
        used = 0
        while not stopped.is_set():
            with versions.lease() as predictor, versions.lease().share() as shared:
                assert not cast(Any, predictor).closed
                assert not cast(Any, shared).closed
                used += 1
        return used

    with ThreadPoolExecutor(4) as pool:
        users = [pool.submit(use) for _ in range(4)]
        for _ in range(2_000):
            versions.replace(cast(Predictor, Closeable()))
            versions.close_unused()
        stopped.set()
        assert all(user.result() for user in users)


def test_closing_a_predictor_unmaps_its_bundle_even_while_references_to_it_remain(built: Any, tmp_path: Path) -> None:
    store = Store(copy_store(built.store, tmp_path / "store"))
    predictor = Predictor.open(store.open(built.version), threads=1)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    predictor.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert predictor.version == built.version
