"""The integrity of a bundle: the signature, the manifest and all checksums are verified before the bundle is opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from recollect.core.bundle.files import MANIFEST, SIGNATURE, expected_files, read_small, require_file
from recollect.core.bundle.manifest import FileInfo, Manifest, parse_manifest
from recollect.core.bundle.signing import SIGNATURE_BYTES, VerifyKeys
from recollect.core.errors import BundleError

_MAX_MANIFEST_BYTES = 1 << 20
_HASHING_THREADS = 4
# Bytes that one step reads and hashes. A step releases Python's global lock and takes it again at its end. Many small
# steps would therefore delay the threads that answer requests.
_STEP_BYTES = 4 << 20


class SignedManifest(NamedTuple):
    """A manifest that was checked, with the bytes of its file and of its signature."""

    content: bytes
    signature: bytes | None
    manifest: Manifest


def read_manifest(folder: Path, verify_keys: VerifyKeys | None = None) -> Manifest:
    """Read the manifest of a bundle; see `read_signed_manifest`."""
    return read_signed_manifest(folder, verify_keys).manifest


def read_signed_manifest(folder: Path, verify_keys: VerifyKeys | None = None) -> SignedManifest:
    """Read the manifest of a bundle: verify its signature first, then parse it.

    The file is read once, so the parsed bytes are the verified bytes.
    """
    content, signature = read_small(folder / MANIFEST, _MAX_MANIFEST_BYTES), None
    if verify_keys is not None and os.path.lexists(folder / SIGNATURE):
        signature = read_small(folder / SIGNATURE, SIGNATURE_BYTES)
    return check_manifest(content, signature, verify_keys, str(folder))


def check_manifest(
    content: bytes, signature: bytes | None, verify_keys: VerifyKeys | None, folder: str
) -> SignedManifest:
    """Verify the signature of a manifest, then parse it; `folder` names the bundle in error messages."""
    if verify_keys is not None:
        verify_keys.check(folder, content, signature)
    return SignedManifest(content, signature, parse_manifest(content, folder))


def describe_files(
    folder: Path,
    pause: Callable[[], None] | None = None,
    names: Collection[str] | None = None,
    with_engine: bool = False,
) -> dict[str, FileInfo]:
    """The SHA-256 and size of files of a bundle.

    Args:
        pause: Called after each step, so that a caller can slow the work down; None hashes several files in parallel.
        names: Names of the files; None means all files of the bundle.
    """
    if names is None:
        names = expected_files(os.listdir(folder), with_engine)

    def describe(name: str) -> tuple[str, FileInfo]:
        digest, size = hashlib.sha256(), 0
        with (folder / name).open("rb", buffering=0) as file:
            buffer = bytearray(min(_STEP_BYTES, os.fstat(file.fileno()).st_size + 1))
            while read := file.readinto(buffer):
                digest.update(memoryview(buffer)[:read])
                size += read
                if pause is not None:
                    pause()
        return name, FileInfo(sha256=digest.hexdigest(), size=size)

    if pause is not None:
        return dict(map(describe, sorted(names)))
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return dict(pool.map(describe, sorted(names)))


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Compare the names and sizes of the files of a bundle with its manifest, without reading the files."""
    for name in sorted({*manifest.files, *os.listdir(folder)}):
        if name not in {*manifest.files, MANIFEST, SIGNATURE}:
            raise BundleError(f"{folder / name}: expected only the files of a bundle, found this file; move it away")
        require_file(folder / name)
    for name, expected in manifest.files.items():
        if (size := (folder / name).stat().st_size) != expected.size:
            raise BundleError(
                f"{folder / name}: expected {expected.size:,} bytes, found {size:,}; build the bundle again"
            )


def check_contents(
    folder: Path, manifest: Manifest, names: Collection[str], pause: Callable[[], None] | None = None
) -> None:
    """Compare the checksums of files of a bundle with its manifest."""
    for name, found in describe_files(folder, pause, names).items():
        if found != (expected := manifest.files[name]):
            raise BundleError(
                f"{folder / name}: expected SHA-256 {expected.sha256[:12]}..., found {found.sha256[:12]}...; "
                "the file was altered: build the bundle again"
            )
