"""Swap versions under load: make a store with several versions, swap once, or swap in a loop."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtests.client import Address, Connection, LostRequestError
from recollect.service.bundle.files import MANIFEST, SIGNATURE
from recollect.service.bundle.integrity import describe_files
from recollect.service.store.store import Store

_TIMEOUT_SECONDS, _POLL_SECONDS, _PAUSE_SECONDS = 60.0, 0.02, 0.1

# Bytes that may follow the content of a file: an empty documentation string in ONNX, a space in JSON, ignored bytes in
# the other files. The file then has another SHA-256, and opens as before.
_ENDINGS = {".onnx": b"\x32\x00", ".json": b" ", ".faiss": b"\0", ".npy": b"\0"}


@contextlib.contextmanager
def copied_versions(store: Path, count: int) -> Iterator[tuple[Store, list[str]]]:
    """Make a temporary store with copies of a store's current version. The first copy is the current version.

    Each further copy returns one label fewer by default, so that the answers of the versions differ.

    Raises:
        StoreError: If the store has no current version.
        BundleError: If the manifest of the current version is invalid.
    """
    source = Store(store)
    version = source.require_current()
    manifest = source.manifest(version)
    most = min(manifest.defaults.top_k, manifest.counts.labels)
    names = [f"{version[:56]}-copy{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Store(Path(folder))
        for number, name in enumerate(names):
            _copy_version(source.path(version), copy.bundles / name, max(1, most - number))
        copy.activate(names[0])
        yield copy, names


def add_changed_version(store: Store, version: str, number: int) -> str:
    """Copy a version within its store and change every file of the copy, so that the versions share no component.

    Args:
        store: The store.
        version: The version to copy.
        number: Copies with different numbers, at least 1, have no equal files either.

    Returns:
        The name of the copy. The copy gives the same answers.
    """
    name = f"{version[:55]}-change{number}"
    folder = store.bundles / name
    _copy_version(store.path(version), folder, store.manifest(version).defaults.top_k)
    for file in store.manifest(version).files:
        with (folder / file).open("ab") as opened:
            opened.write(number * _ENDINGS[Path(file).suffix])
    files = {file: info.model_dump() for file, info in describe_files(folder).items()}
    _change_manifest(folder, files=files)
    return name


def _copy_version(source: Path, target: Path, top_k: int) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(SIGNATURE))
    defaults = json.loads((target / MANIFEST).read_bytes())["defaults"]
    _change_manifest(target, version=target.name, defaults=defaults | {"top_k": top_k})


def _change_manifest(folder: Path, **fields: object) -> None:
    content = json.loads((folder / MANIFEST).read_bytes()) | fields
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def swap_to(store: Store, version: str, address: Address) -> None:
    """Activate a version, and wait until the server serves this version.

    Raises:
        TimeoutError: If the server does not serve the version in time.
    """
    store.activate(version)
    until = time.monotonic() + _TIMEOUT_SECONDS
    with contextlib.closing(Connection(address)) as connection:
        while _served_version(connection) != version:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{version}: expected a server that serves it {_TIMEOUT_SECONDS:.0f} s after activation"
                )
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def swap_storm(store: Store, versions: list[str], address: Address) -> Iterator[list[float]]:
    """Swap versions in a loop while the `with` block runs; yield the seconds of each finished swap.

    Use three versions or more: a server may keep the previous version open, and then swaps back without any work.
    A swap lasts from the activation of a version until the server serves this version.

    Raises:
        TimeoutError: If the server does not serve a version in time.
    """
    ended = threading.Event()
    swaps: list[float] = []

    def swap() -> None:
        for version in itertools.cycle(reversed(versions)):
            start = time.perf_counter()
            swap_to(store, version, address)
            swaps.append(time.perf_counter() - start)
            if ended.wait(_PAUSE_SECONDS):
                return

    with ThreadPoolExecutor(1) as pool:
        storm = pool.submit(swap)
        try:
            yield swaps
        finally:
            ended.set()
        storm.result()


def _served_version(connection: Connection) -> str:
    """The version that the server serves; empty if the server does not answer."""
    with contextlib.suppress(LostRequestError):
        return connection.get("/version").version
    return ""
