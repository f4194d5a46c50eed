"""The bundle store: all bundles, and which one is current.

    store/   bundles/<version>/   whole bundles only
             CURRENT              one line: the version that replicas serve
             HISTORY              the versions that were current, one a line, the current one last

A bundle is written aside in `.incoming-*`, flushed to disk and renamed; CURRENT moves last. So a store is valid
after every step, and what a killed builder leaves behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from service.bundle import Bundle, open_bundle
from service.errors import BundleError, StoreError
from service.manifest import Manifest, check_version, is_version, read_manifest
from service.signing import read_verify_key

_INCOMING = ".incoming-"


class Store:
    """A store's folder; with a public key, nothing is taken from there that its private half did not sign.

    Raises:
        KeyFileError: If `verify_key` is no Ed25519 public key.
    """

    def __init__(self, root: Path, verify_key: Path | None = None) -> None:
        self.root = root
        self.bundles = root / "bundles"
        self._verify_key = read_verify_key(verify_key) if verify_key else None

    def require(self) -> None:
        """Refuse a path that is no store.

        Raises:
            StoreError: If there is no such folder.
        """
        if not self.root.is_dir():
            raise StoreError(f"{self.root}: expected a bundle store, found none; run `recollect build`")

    def versions(self) -> list[str]:
        """All published versions, oldest first."""
        if not self.bundles.is_dir():
            return []
        return sorted(path.name for path in self.bundles.iterdir() if is_version(path.name) and path.is_dir())

    def current(self) -> str | None:
        """The version that replicas serve; None if none is.

        Raises:
            StoreError: If CURRENT holds no version's name.
        """
        try:
            return check_version((self.root / "CURRENT").read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            return None
        except (UnicodeDecodeError, StoreError):
            raise StoreError(f"{self.root / 'CURRENT'}: expected a version's name; run `recollect activate`") from None

    def require_current(self) -> str:
        """The current version.

        Raises:
            StoreError: If there is no store or nothing is current.
        """
        self.require()
        current = self.current()
        if current is None:
            known = ", ".join(self.versions()[-3:]) or "no version at all: run `recollect build`"
            raise StoreError(f"{self.root}: no version is current; `recollect activate` one of: {known}")
        return current

    def resolve(self, version: str) -> str:
        """The version's name; `current` stands for the one that is.

        Raises:
            StoreError: If nothing is current.
        """
        return self.require_current() if version == "current" else version

    def path(self, version: str) -> Path:
        """A published version's folder.

        Raises:
            StoreError: If the store has no such version.
        """
        folder = self.bundles / check_version(version)
        self.require()
        if not folder.is_dir():
            known = ", ".join(self.versions()[-3:]) or "none"
            raise StoreError(f"{self.root}: expected a published version, found no {version!r}; the latest: {known}")
        return folder

    def manifest(self, version: str) -> Manifest:
        """A published version's manifest.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If the manifest cannot be read, lacks its signature, or is another version's.
        """
        manifest = read_manifest(self.path(version), self._verify_key)
        self._check_name(version, manifest)
        return manifest

    def open(self, version: str) -> Bundle:
        """Check and map a published version.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If it is not what was published, lacks its signature, or is another version.
        """
        bundle = open_bundle(self.path(version), self._verify_key)
        self._check_name(version, bundle.manifest)
        return bundle

    def activate(self, version: str) -> None:
        """Make a version current.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If its manifest is broken.
        """
        self.manifest(version)
        with self._lock():
            history = self._history()
            if history[-1:] != [version]:
                self._set_current([*history, version])

    def rollback(self) -> str:
        """Return to the version that was current before, and name it.

        Raises:
            StoreError: If there is none.
        """
        self.require()
        with self._lock():
            history = self._history()
            others = set(self.versions()) - set(history[-1:])
            while history and history[-1] not in others:
                history.pop()  # current, or removed since
            if not history:
                raise StoreError(f"{self.root}: no version was current before; choose one with `recollect activate`")
            self.manifest(history[-1])
            self._set_current(history)
            return history[-1]

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder to write a bundle in, on the store's own disk; gone afterwards unless published."""
        self.bundles.mkdir(parents=True, exist_ok=True)
        with self._lock():  # or another builder may take a folder that is not locked yet for an abandoned one
            self._remove_abandoned()
            folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.bundles))
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held while its builder lives
        try:
            yield folder
        except OSError as error:
            error.filename = error.filename or str(self.bundles)  # a full disk names no file
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    def publish(self, folder: Path, version: str) -> None:
        """Flush an incoming bundle to disk and give it its name.

        Raises:
            StoreError: If the name is malformed, or taken: a published bundle never changes.
        """
        target = self.bundles / check_version(version)
        for path in folder.iterdir():
            _sync(path)
        folder.chmod(0o755)
        _sync(folder)
        if target.exists():
            raise StoreError(f"{target}: expected a new version, found one already published; build again")
        folder.rename(target)
        _sync(self.bundles)

    def _check_name(self, version: str, manifest: Manifest) -> None:
        if manifest.version != version:
            raise BundleError(f"{self.path(version)}: expected version {version}, manifest says {manifest.version}")

    def _remove_abandoned(self) -> None:
        for folder in self.bundles.glob(f"{_INCOMING}*"):
            try:
                descriptor = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # published since
                continue
            with contextlib.suppress(BlockingIOError):  # its builder is at work
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _history(self) -> list[str]:
        """Versions that were current; CURRENT, moved last, is the truth where the two disagree."""
        path = self.root / "HISTORY"
        history = path.read_text(encoding="utf-8", errors="replace").split() if path.is_file() else []
        try:
            current = self.current()
        except StoreError:  # no name of a version: `activate` writes it anew
            return []
        if current is None:
            return []
        return history[: len(history) - history[::-1].index(current)] if current in history else [*history, current]

    def _set_current(self, history: list[str]) -> None:
        _replace(self.root / "HISTORY", "".join(f"{version}\n" for version in history))
        _replace(self.root / "CURRENT", f"{history[-1]}\n")


def _replace(path: Path, content: str) -> None:
    aside = path.with_name(f".{path.name}{_INCOMING}{os.getpid()}")
    try:
        aside.write_text(content, encoding="utf-8")
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
