"""The store at a URL, as `s3://bucket/store`: bundles are fetched into a local cache, checked, then opened.

    URL/     bundles/<version>/  CURRENT  HISTORY      as in a store's folder; manifest.json is uploaded last
    cache/   <store>-<hash>/bundles/<version>/         one copy for all processes of the machine

An object store knows neither locks nor renames. So a version is there once its manifest.json is; of two who activate at
once the last writer wins, and both versions are valid; and HISTORY is only as true as CURRENT, written after it, says.

A cached bundle counts only while its manifest is the store's. While a process has one open it is never removed; even
if an operator does, nothing fails: on Linux, what is mapped stays until the last who maps it lets go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from service.bundle.bundle import Bundle
from service.bundle.files import MANIFEST, SIGNATURE
from service.bundle.manifest import Manifest, check_version, is_version
from service.errors import BundleError, StoreError
from service.store.remote_folder import RemoteFolder
from service.store.store import INCOMING, Store, named_in

# Cached versions that stay beside the current one: the latest opened, to roll back to at once.
_KEPT = 2
_LOOK_SECONDS = 0.1


def default_cache() -> Path:
    """Where bundles are kept if nobody says: with the user's other caches.

    Raises:
        StoreError: If the user has no home.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "recollect"
    except RuntimeError:
        raise StoreError(
            "expected a home folder to keep bundles in, found none; choose one with --bundle-cache"
        ) from None


class RemoteStore(Store):
    """A store at a URL; what is inherited works on its cache, a store's folder too.

    Raises:
        KeyFileError: If `verify_key` is no Ed25519 public key.
        StoreError: If there is no folder to keep bundles in.
    """

    def __init__(self, url: str, verify_key: Path | None = None, cache: Path | None = None) -> None:
        self._remote = RemoteFolder(url)
        self._closed = threading.Event()
        super().__init__((cache or default_cache()) / _folder_name(self._remote.name), verify_key)
        self.name = self._remote.name
        self.bundles.mkdir(parents=True, exist_ok=True)

    def require(self) -> None:
        if self._read("CURRENT") is None and not self.versions():
            raise self._no_store()

    def versions(self) -> list[str]:
        names = sorted(name for name in self._remote.names("bundles") if is_version(name))
        return [name for name in names if self._remote.has(f"bundles/{name}/{MANIFEST}")]

    def path(self, version: str) -> Path:
        """A published version's folder in the cache, fetched if it is not there."""
        with self._fetching():
            self._fetch(version)
        return self.bundles / version

    def manifest(self, version: str) -> Manifest:
        with super().incoming() as folder:
            return self._fetch_manifest(version, folder)

    def open(self, version: str, pause: Callable[[], None] | None = None) -> Bundle:
        """Fetch a published version if it is not cached, check and map it.

        One that is damaged in the cache is fetched again, once.

        Raises:
            StoreError: If the store has no such version, it cannot be fetched, or the disk is too small for it.
            BundleError: If it is not what was published, lacks its signature, or is another version.
        """
        try:
            return self._open_cached(version, pause)
        except _DamagedCopyError:
            return self._open_cached(version, pause, again=True)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder to write a bundle in, in the cache.

        Raises:
            StoreError: If the store cannot be written to: building takes long, so that is tried first.
        """
        self._remote.write(INCOMING + "try", b"")
        with super().incoming() as folder:
            yield folder

    def publish(self, folder: Path, version: str) -> None:
        """Upload a bundle, its manifest last: what a killed upload leaves is no version, and may be written over.

        Raises:
            StoreError: If the name is malformed or taken, or the store cannot be written to.
        """
        where = f"bundles/{check_version(version)}"
        if self._remote.has(f"{where}/{MANIFEST}"):
            raise StoreError(f"{self.name}/{where}: expected a new version, found one already published; build again")
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
            self._remote.upload(path, f"{where}/{path.name}")

    def close(self) -> None:
        """Give up a fetch, as the service stops."""
        self._closed.set()

    def _moving_current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # there are no locks: the last writer wins

    def _read(self, name: str) -> bytes | None:
        return self._remote.read(name)

    def _write(self, name: str, content: bytes) -> None:
        self._remote.write(name, content)

    def _open_cached(self, version: str, pause: Callable[[], None] | None, again: bool = False) -> Bundle:
        folder = self.bundles / check_version(version)
        with contextlib.ExitStack() as held:
            with self._fetching():
                fetched = self._fetch(version, again)
                held.callback(os.close, descriptor := os.open(folder, os.O_RDONLY))
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # nobody removes it while the bundle lives
                os.utime(folder)
            try:
                with self._naming_the_url(folder, version):
                    bundle = self._open(folder, version, pause)
            except BundleError as error:
                if not fetched:
                    raise _DamagedCopyError from None
                self._remove(version)
                raise error from None
            weakref.finalize(bundle, held.pop_all().close)
        return bundle

    @contextlib.contextmanager
    def _fetching(self) -> Iterator[None]:
        """Held by one process at a time, so that others find what it fetched."""
        descriptor = os.open(self.bundles, os.O_RDONLY)
        try:
            while not _locked(descriptor):
                self._check_open()
                self._closed.wait(_LOOK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _fetch(self, version: str, again: bool = False) -> bool:
        """Bring a version into the cache; whether it had to be fetched, `again` even if it is there."""
        cached = self.bundles / check_version(version)
        with super().incoming() as folder:
            manifest = self._fetch_manifest(version, folder)
            with contextlib.suppress(FileNotFoundError):
                if not again and (cached / MANIFEST).read_bytes() == (folder / MANIFEST).read_bytes():
                    return False
            self._make_room(manifest)
            for name, file in manifest.files.items():
                self._download(f"bundles/{version}/{name}", folder / name, file.size)
            self._remove(version)
            super().publish(folder, version)
        return True

    def _fetch_manifest(self, version: str, folder: Path) -> Manifest:
        """Fetch a version's manifest and signature; nothing else of it is believed before they are checked."""
        for name in (MANIFEST, SIGNATURE):
            content = self._remote.read(f"bundles/{check_version(version)}/{name}")
            if content is not None:
                (folder / name).write_bytes(content)
            elif name == MANIFEST:
                raise self._no_version(version)
        with self._naming_the_url(folder, version):
            return self._read_manifest(folder, version)

    def _download(self, name: str, path: Path, size: int) -> None:
        left = size
        with path.open("wb") as file:
            for piece in self._remote.pieces(name):
                self._check_open()
                left -= len(piece)
                if left < 0:
                    raise BundleError(
                        f"{self.name}/{name}: expected {size:,} bytes, found more; build the bundle again"
                    )
                file.write(piece)

    def _make_room(self, manifest: Manifest) -> None:
        """Remove what is kept no longer, then see that the bundle fits on the disk."""
        current = named_in(self._read("CURRENT") or b"")
        latest = sorted(super().versions(), key=lambda version: (self.bundles / version).stat().st_mtime_ns)
        for version in latest[:-_KEPT]:
            if version not in (current, manifest.version):
                self._remove(version, in_use=False)
        if (free := shutil.disk_usage(self.bundles).free) < manifest.size_bytes:
            raise StoreError(
                f"{self.name}/bundles/{manifest.version}: expected room for {manifest.size_bytes:,} bytes, found "
                f"{free:,} in {self.bundles}; make room, or choose another --bundle-cache"
            )

    def _remove(self, version: str, in_use: bool = True) -> None:
        """Remove a version from the cache, if it is there, in one step; one that is in use only if told to."""
        folder = self.bundles / version
        if not folder.is_dir():
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if in_use or _locked(descriptor):
                aside = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
                folder.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _naming_the_url(self, folder: Path, version: str) -> Iterator[None]:
        """Let messages name where a file came from."""
        try:
            yield
        except BundleError as error:
            raise BundleError(str(error).replace(str(folder), f"{self.name}/bundles/{version}")) from None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError(f"{self.name}: given up, as the service stops")


class _DamagedCopyError(Exception):
    """A cached bundle is not what was fetched."""


def _folder_name(name: str) -> str:
    """What a person recognises, and what no other store has."""
    readable = re.sub(r"[^0-9A-Za-z]+", "-", name)[-48:].strip("-")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _locked(descriptor: int) -> bool:
    """Take a lock if nobody holds it; whether it was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
