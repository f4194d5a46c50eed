"""Swap versions under load: make a store with two versions, swap once, or swap in a loop."""

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
from service.bundle.files import MANIFEST, SIGNATURE
from service.store.store import Store

_TIMEOUT_SECONDS, _POLL_SECONDS, _PAUSE_SECONDS = 60.0, 0.02, 0.1


@contextlib.contextmanager
def two_versions(store: Path) -> Iterator[tuple[Store, list[str]]]:
    """Make a temporary store with two copies of a store's current version. The first copy is the current version.

    The second copy returns one label fewer by default, so that the answers of the two versions differ.

    Raises:
        StoreError: If the store has no current version.
        BundleError: If the manifest of the current version is invalid.
    """
    source = Store(store)
    version = source.require_current()
    manifest = source.manifest(version)
    most = min(manifest.defaults.top_k, manifest.counts.labels)
    names = [f"{version[:60]}-{letter}" for letter in "ab"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Store(Path(folder))
        for name, top_k in zip(names, (most, max(1, most - 1)), strict=True):
            bundle = copy.bundles / name
            shutil.copytree(source.path(version), bundle, ignore=shutil.ignore_patterns(SIGNATURE))
            content = json.loads((bundle / MANIFEST).read_bytes())
            content["version"] = name
            content["defaults"]["top_k"] = top_k
            (bundle / MANIFEST).write_text(json.dumps(content), encoding="utf-8")
        copy.activate(names[0])
        yield copy, names


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
def swap_storm(store: Store, versions: list[str], address: Address) -> Iterator[list[str]]:
    """Swap versions in a loop while the `with` block runs; yield the list of finished swaps.

    Raises:
        TimeoutError: If the server does not serve a version in time.
    """
    ended = threading.Event()
    swaps: list[str] = []

    def swap() -> None:
        for version in itertools.cycle(reversed(versions)):
            swap_to(store, version, address)
            swaps.append(version)
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
        return connection.get("/health/live").version
    return ""
