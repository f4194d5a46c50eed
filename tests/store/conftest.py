"""Fixtures: stores at URLs, and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import recollect
from recollect.store.store import Store
from tests.store.servers import WebServer, create_bucket


@pytest.fixture
def url(s3: str, tmp_path: Path) -> str:
    """The URL of a store in an empty bucket."""
    return create_bucket(s3, tmp_path.name)


@pytest.fixture
def origin(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """The store folder that the fixture `web` serves: versions A to E; A is current."""
    store = Store(tmp_path / "origin")
    for version in "ABCDE":
        write_bundle(store.bundles / version, version)
    store.activate("A")
    return store


@pytest.fixture
def web(origin: Store) -> Iterator[WebServer]:
    with WebServer(origin.root).running() as web:
        yield web


@pytest.fixture
def store(web: WebServer, tmp_path: Path) -> Store:
    """The store at the URL of the fixture `web`."""
    return Store(web.url, None, tmp_path / "cache")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must succeed; return the command's output."""

    def run(*arguments: object) -> str:
        assert recollect.main([str(each) for each in arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail; return its error message, which must have one line."""

    def error_of(*arguments: object) -> str:
        assert recollect.main([str(each) for each in arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return error_of
