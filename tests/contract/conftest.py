"""Fixtures of the contract: the committed store, a run and a second version, and the servers of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import made_once
from tests.contract import make_store
from tests.contract.servers import serving
from tests.extras import is_present
from tests.processes import Server, copy_store, run, run_json


class Work(NamedTuple):
    """What the verbs make from a dataset. Tests must not change it.

    `store` has two versions: `first` is the committed one and is current, `second` was built from `run`.
    """

    dataset: Path
    encoder: Path
    run: Path
    store: Path
    first: str
    second: str


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the committed store. Tests must not change it."""
    return copy_store(make_store.STORE, tmp_path_factory.mktemp("golden") / "store")


@pytest.fixture(scope="session")
def golden_version(golden_store: Path) -> str:
    return str(run_json("versions", "--store", golden_store)["current"])


@pytest.fixture
def store(golden_store: Path, tmp_path: Path) -> Path:
    """A copy of the committed store that a test may change."""
    return copy_store(golden_store, tmp_path / "store")


@pytest.fixture(scope="session")
def work(golden_store: Path, golden_version: str, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """The dataset, the encoder, a run of one epoch and its version, made by `recollect train` and `recollect build`."""
    folder = made_once(tmp_path_factory, "work", lambda folder: make_work(folder, golden_store))
    version = (folder / "version").read_text()
    return Work(*(folder / name for name in ("dataset", "encoder", "run", "store")), golden_version, version)


def make_work(folder: Path, golden_store: Path) -> None:
    dataset, encoder, run_folder = folder / "dataset", folder / "encoder", folder / "run"
    make_store.write_dataset(dataset)
    make_store.write_encoder(encoder)
    training = ("--epochs", 1, "--validation-fraction", 0.5)
    lengths = ("--max-length", make_store.POSITIONS, "--label-max-length", make_store.POSITIONS)
    run("train", dataset, "--out", run_folder, "--encoder", "static", "--static-from", encoder, *training, *lengths)
    store = copy_store(golden_store, folder / "store")
    built = run("build", run_folder, "--store", store, "--index", "flat", "--lexical", "off")
    (folder / "version").write_text(built.stdout.splitlines()[-1])


@pytest.fixture
def two_versions(work: Work, tmp_path: Path) -> Path:
    """A copy of the store with two versions that a test may change; the first one is current."""
    return copy_store(work.store, tmp_path / "two versions")


@pytest.fixture(scope="session")
def open_server(golden_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default settings: no API keys, and a memory that cannot be changed."""
    with serving(golden_store, writable=False) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_server(golden_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with API keys, a memory that can be changed, Annif's API, and a queue of 32 queries."""
    folder = tmp_path_factory.mktemp("guarded")
    store = copy_store(golden_store, folder / "store")
    annif = ["--annif"] if is_present("annif") else []
    with serving(store, *annif, "--max-queue", 32, "--docs", "key", "--metrics", "key") as server:
        yield server
