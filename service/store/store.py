"""The bundle store: all bundles, and the name of the current version.

    store/   bundles/<version>/   published bundles
             CURRENT              one line: the version that replicas serve
             HISTORY              versions that were current, one a line; the current version is last

The file CURRENT is written last, so that the store is valid after every step. `remote.py` uses the same file layout at
a URL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from service.bundle.bundle import Bundle, open_bundle
from service.bundle.integrity import read_manifest
from service.bundle.manifest import Manifest, check_version, is_version
from service.bundle.signing import read_verify_key
from service.errors import BundleError, StoreError, UnknownVersionError
from service.store.bundle_folder import BundleFolder, replace_file


class Store:
    """A store in a folder. If a public key is given, every bundle must be signed by the matching private key.

    Subclasses replace the methods that read or write files.

    Attributes:
        name: The store's name in error messages.
        local: The bundles on this machine: the store's own bundles, or the cache of a store at a URL.
        root: The folder of `local`.
        bundles: The folder inside `root` that contains one folder for each version.

    Raises:
        KeyFileError: If `verify_key` is not an Ed25519 public key.
    """

    def __init__(self, root: Path, verify_key: Path | None = None) -> None:
        self.name = str(root)
        self.local = BundleFolder(root)
        self.root = root
        self.bundles = self.local.bundles
        self._verify_key = read_verify_key(verify_key) if verify_key else None

    def require(self) -> None:
        """Check that the store exists.

        Raises:
            StoreError: If the folder does not exist.
        """
        if not self.root.is_dir():
            raise self._no_store()

    def versions(self) -> list[str]:
        """All published versions, oldest first."""
        return self.local.versions()

    def current(self) -> str | None:
        """The version that replicas serve; None if no version is current.

        Raises:
            StoreError: If CURRENT does not hold a version's name.
        """
        content = self._read("CURRENT")
        if content is None:
            return None
        if (version := parse_current(content)) is None:
            raise StoreError(f"{self.name}/CURRENT: expected a version's name; run `recollect activate`")
        return version

    def require_current(self) -> str:
        """The version that replicas serve.

        Raises:
            StoreError: If the store does not exist or no version is current.
        """
        current = self.current()
        if current is None:
            self.require()
            known = self._latest() or "no version at all: run `recollect build`"
            raise StoreError(f"{self.name}: no version is current; `recollect activate` one of: {known}")
        return current

    def resolve(self, version: str) -> str:
        """Return `version`; for the word `current`, return the name of the current version.

        Raises:
            StoreError: If `version` is `current` and no version is current.
        """
        return self.require_current() if version == "current" else version

    def path(self, version: str) -> Path:
        """The folder of a published version.

        Raises:
            StoreError: If the version is not published.
        """
        folder = self.bundles / check_version(version)
        if not folder.is_dir():
            raise self._no_version(version)
        return folder

    def manifest(self, version: str) -> Manifest:
        """The manifest of a published version.

        Raises:
            StoreError: If the version is not published.
            BundleError: If the manifest is broken, is not signed, or belongs to another version.
        """
        return self._read_manifest(self.path(version), version)

    def open(self, version: str, pause: Callable[[], None] | None = None, share_with: Sequence[Bundle] = ()) -> Bundle:
        """Check the files of a published version, then map them into memory.

        Args:
            version: Name of the version.
            pause: Called between the steps.
            share_with: Other open bundles of this store; see `open_bundle`.

        Raises:
            StoreError: If the version is not published.
            BundleError: If a file differs from the published file, is not signed, or belongs to another version.
        """
        return self._open(self.path(version), version, pause, share_with)

    def close(self) -> None:
        """Stop an upload or a download in progress, so that the service can shut down. A store in a folder has none."""

    def activate(self, version: str) -> None:
        """Make a version current.

        Raises:
            StoreError: If the version is not published.
            BundleError: If the manifest of the version is broken.
        """
        self.manifest(version)
        with self._lock_current():
            history = self._history()
            if history[-1:] != [version]:
                self._set_current([*history, version])

    def rollback(self) -> str:
        """Make the previous current version current again, and return it.

        Raises:
            StoreError: If there is no previous version.
        """
        self.require()
        with self._lock_current():
            history = self._history()
            candidates = set(self.versions()) - set(history[-1:])
            while history and history[-1] not in candidates:
                history.pop()  # the current version, or a removed one
            if not history:
                raise UnknownVersionError(
                    f"{self.name}: no version was current before; choose one with `recollect activate`"
                )
            self.manifest(history[-1])
            self._set_current(history)
            return history[-1]

    def incoming(self) -> contextlib.AbstractContextManager[Path]:
        """A temporary folder for writing a bundle. The folder is removed afterwards unless the bundle is published."""
        return self.local.incoming()

    def publish(self, folder: Path, version: str) -> None:
        """Publish a bundle that was written to a temporary folder.

        Raises:
            StoreError: If the version is malformed or already published: a published bundle never changes.
        """
        self.local.publish(folder, version)

    def _open(
        self, folder: Path, version: str, pause: Callable[[], None] | None, share_with: Sequence[Bundle]
    ) -> Bundle:
        bundle = open_bundle(folder, self._verify_key, pause, share_with)
        _check_version_of(bundle.manifest, version, folder)
        return bundle

    def _read_manifest(self, folder: Path, version: str) -> Manifest:
        manifest = read_manifest(folder, self._verify_key)
        _check_version_of(manifest, version, folder)
        return manifest

    def _no_store(self) -> StoreError:
        return StoreError(f"{self.name}: expected a bundle store, found none; run `recollect build`")

    def _no_version(self, version: str) -> StoreError:
        self.require()
        return UnknownVersionError(
            f"{self.name}: expected a published version, found no {version!r}; the latest: {self._latest() or 'none'}"
        )

    def _latest(self) -> str:
        """The names of the latest versions, for error messages."""
        return ", ".join(self.versions()[-3:])

    def _lock_current(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock that is needed to change the files CURRENT and HISTORY."""
        return self.local.lock()

    def _history(self) -> list[str]:
        """The versions that were current, oldest first. The last one is always the version in the file CURRENT."""
        history = (self._read("HISTORY") or b"").decode(errors="replace").split()
        current = parse_current(self._read("CURRENT") or b"")
        if current is None:  # no version is current, or CURRENT is damaged
            return []
        return history[: len(history) - history[::-1].index(current)] if current in history else [*history, current]

    def _set_current(self, history: list[str]) -> None:
        self._write("HISTORY", "".join(f"{version}\n" for version in history).encode())
        self._write("CURRENT", f"{history[-1]}\n".encode())

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        replace_file(self.root / name, content)


def parse_current(content: bytes) -> str | None:
    """The version that the content of the file CURRENT names; None if the content is not a version's name."""
    name = content.decode(errors="replace").strip()
    return name if is_version(name) else None


def _check_version_of(manifest: Manifest, version: str, folder: Path) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")
