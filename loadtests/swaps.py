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
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from loadtests.load import Address
from recollect.core.bundle.files import MANIFEST, SIGNATURE
from recollect.core.bundle.integrity import describe_files
from recollect.store.store import Store

_TIMEOUT_SECONDS, _POLL_SECONDS, _PAUSE_SECONDS = 60.0, 0.02, 0.1

# Bytes that may follow the content of a file: an empty documentation string in ONNX, a space in JSON, ignored bytes in
# the other files. The file then has another SHA-256, and opens as before.
_ENDINGS = {".onnx": b"\x32\x00", ".json": b" ", ".faiss": b"\0", ".npy": b"\0"}


@contextlib.contextmanager
def copied_versions(store: Path, count: int) -> Iterator[tuple[Store, list[str]]]:
    """Make a temporary store with copies of a store's current version. The first copy is the current version.

    No two copies have an equal file, so that they share no component in the server. All give the same answers.

    Raises:
        StoreError: If the store has no current version.
        BundleError: If the manifest of the current version is invalid.
    """
    source = Store(store)
    version = source.require_current()
    files = source.manifest(version).files
    names = [f"{version[:56]}-copy{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as temporary:
        copy = Store(Path(temporary))
        for number, name in enumerate(names):
            folder = copy.bundles / name
            shutil.copytree(source.bundles / version, folder, ignore=shutil.ignore_patterns(SIGNATURE))
            for file in files:
                with (folder / file).open("ab") as opened:
                    opened.write(number * _ENDINGS[Path(file).suffix])
            described = {file: info.model_dump() for file, info in describe_files(folder).items()}
            manifest = json.loads((folder / MANIFEST).read_bytes()) | {"version": name, "files": described}
            (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        copy.activate(names[0])
        yield copy, names


def swap_to(store: Store, version: str, address: Address) -> None:
    """Activate a version, and wait until the server serves this version.

    Raises:
        TimeoutError: If the server does not serve the version in time.
    """
    store.activate(version)
    until = time.monotonic() + _TIMEOUT_SECONDS
    while _served_version(address) != version:
        if time.monotonic() > until:
            raise TimeoutError(f"{version}: expected a server that serves it {_TIMEOUT_SECONDS:.0f} s after activation")
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


def _served_version(address: Address) -> str:
    """The version that the server serves; empty if the server does not answer."""
    with (
        contextlib.suppress(OSError, HTTPException),
        contextlib.closing(HTTPConnection(*address, timeout=30)) as asking,
    ):
        asking.request("GET", "/version")
        return asking.getresponse().headers.get("X-Index-Version", "")
    return ""
