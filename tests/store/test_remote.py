"""Stores at URLs: an S3 server, which allows reading and writing, and a plain web server, which allows only reading."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.core.errors import StoreError, UnknownVersionError
from recollect.store.store import Store
from tests.processes import copy_store, serving
from tests.store.servers import FaultyProxy, WebServer, publish

POLL = ("--poll-seconds", "0.05")


def test_versions_in_s3_can_be_published_served_swapped_and_rolled_back(
    url: str, light_versions: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    cache = tmp_path / "cache"
    flags = ("--store", url, "--bundle-cache", cache)
    bundles = light_versions / "bundles"
    for version in ("v3", "v5"):
        publish(Store(url, None, cache), bundles / version, version)
    with pytest.raises(StoreError, match="expected a new version, found one already published; build again"):
        publish(Store(url, None, cache), bundles / "v3", "v3")
    assert run("activate", "v3", *flags) == "v3\n"
    listed = json.loads(run("versions", "--json", *flags))
    assert (listed["current"], [row["version"] for row in listed["versions"]]) == ("v3", ["v3", "v5"])
    assert not any(path.is_dir() for path in Store(url, None, cache).bundles.iterdir())  # it loads only manifests
    with serving(url, *POLL, "--bundle-cache", str(cache)) as server:
        assert len(server.uids("bread")) == 3
        assert run("activate", "v5", *flags) == "v5\n"
        server.wait_for("bundle_swapped")
        assert len(server.uids("bread")) == 5
        assert run("rollback", *flags) == "v3\n"
        server.wait_for("bundle_swapped", 2)
        assert len(server.uids("bread")) == 3
        assert "very-secret" not in server.log()
    assert json.loads(run("predict", "bread", "--version", "v5", "--json", *flags))["version"] == "v5"


def test_missing_bucket_and_missing_store_and_missing_current_file_have_different_errors(
    url: str, origin: Store, tmp_path: Path, error_of: Callable[..., str]
) -> None:
    line = error_of("verify", "current", "--store", url, "--bundle-cache", tmp_path)
    assert line == f"recollect verify: {url}: expected a bundle store, found none; run `recollect build`"
    line = error_of("verify", "current", "--store", "s3://no-such-bucket/store", "--bundle-cache", tmp_path)
    assert "s3://no-such-bucket/store/activations: expected an answer, found: 404 Not Found: The specified buck" in line
    with (
        pytest.raises(StoreError, match="expected an answer, found: .*bucket does not exist"),
        Store("s3://no-such-bucket/store", None, tmp_path).incoming(),
    ):
        pytest.fail("the builder must fail before it builds")
    publish(Store(url, None, tmp_path), origin.bundles / "A", "A")
    line = error_of("verify", "current", "--store", url, "--bundle-cache", tmp_path)
    assert "no version is current; `recollect activate` one of: A" in line


def test_expired_credentials_are_named(
    s3: str, url: str, origin: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_of: Callable[..., str]
) -> None:
    flags = ("--store", url, "--bundle-cache", tmp_path / "cache")
    publish(Store(url, None, tmp_path / "cache"), origin.bundles / "A", "A")
    proxy = FaultyProxy(s3)
    proxy.has_expired = True
    with proxy.running() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for command in (("versions",), ("activate", "A"), ("rollback",), ("log",)):
            line = error_of(*command, *flags)
            assert "403 Forbidden: The provided token has expired.; check the URL, the network and the cred" in line
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    assert Store(url, None, tmp_path / "cache").activation() is None


def test_store_behind_a_plain_web_server_can_be_read_but_not_listed_or_changed(
    web: WebServer, store: Store, tmp_path: Path, run: Callable[..., str], error_of: Callable[..., str]
) -> None:
    flags = ("--store", web.url, "--bundle-cache", tmp_path / "cache")
    assert store.require_current() == "A"
    assert store.open("B").labels.uids[1] == "label 1"
    assert store.open("B").folder.is_relative_to(tmp_path / "cache")
    with pytest.raises(UnknownVersionError, match="found no 'F'; the latest: unknown, because the server cannot list"):
        store.open("F")
    line = error_of("versions", *flags)
    assert f"{web.url}/bundles: expected an answer, found: 501 Not Implemented; check the URL" in line
    line = error_of("activate", "B", *flags)
    assert f"{web.url}: expected an object store or a folder to write to, found a web server" in line
    assert run("log", *flags).startswith("20")


def test_server_keeps_serving_while_the_store_is_unreachable_and_swaps_later(
    light_versions: Path, tmp_path: Path
) -> None:
    web = WebServer(copy_store(light_versions, tmp_path / "origin"))
    with contextlib.ExitStack() as stack:
        with web.running():
            server = stack.enter_context(serving(web.url, *POLL, "--bundle-cache", str(tmp_path / "cache")))
        unreadable = server.wait_for("store_unreadable")
        assert unreadable["serving"] == "v3"
        assert f"{web.url}/activations/0000000" in unreadable["error"]
        assert "Connection refused" in unreadable["error"]
        assert server.ask("bread").json()["version"] == "v3"
        Store(web.folder).activate("v5")
        with web.running():
            server.wait_for("bundle_swapped")
