"""The bundle store: all bundles, and the version that replicas must serve.

    store/   bundles/<version>/   published bundles
             ACTIVATION           the activation record: the current version and its generation
             CURRENT              one line: the current version, for people and scripts
             LOG                  one JSON line for each activation and rollback
             PROTECTED            the versions that `recollect prune` must keep, one a line

`remote.py` uses the same file layout at a URL.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from service.bundle.bundle import Bundle, open_bundle
from service.bundle.files import MANIFEST, SIGNATURE
from service.bundle.integrity import check_files, read_manifest
from service.bundle.manifest import Manifest, check_version
from service.bundle.signing import read_verify_key
from service.errors import BundleError, StoreError, UnknownVersionError
from service.store.activation_record import ActivationRecord, default_author
from service.store.audit_log import LogEntry
from service.store.bundle_folder import BundleFolder
from service.store.control_files import ControlFiles, FolderFiles
from service.store.desired_state import DesiredState


class Store:
    """A store in a folder. If a public key is given, every bundle must be signed by the matching private key.

    Subclasses replace the methods that read or write bundles.

    Attributes:
        name: The store's name in error messages.
        local: The bundles on this machine: the store's own bundles, or the cache of a store at a URL.
        root: The folder of `local`.
        bundles: The folder inside `root` that contains one folder for each version.
        files: The small files of the store, beside the bundles.

    Raises:
        KeyFileError: If `verify_key` is not an Ed25519 public key.
    """

    def __init__(self, root: Path, verify_key: Path | None = None, files: ControlFiles | None = None) -> None:
        self.files = files or FolderFiles(root)
        self.name = self.files.name
        self.local = BundleFolder(root)
        self.root = root
        self.bundles = self.local.bundles
        self._state = DesiredState(self.files)
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

    def activation(self) -> ActivationRecord | None:
        """The activation record; None if no version is current.

        Raises:
            StoreError: If the record is damaged.
        """
        return self._state.record()

    def current(self) -> str | None:
        """The version that replicas must serve; None if no version is current.

        Raises:
            StoreError: If the activation record is damaged.
        """
        record = self.activation()
        return record.version if record else None

    def log(self) -> list[LogEntry]:
        """All activations and rollbacks, oldest first.

        Raises:
            StoreError: If the activation record is damaged.
        """
        return self._state.log()

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

    def open(self, version: str, pause: Callable[[], None] | None = None) -> Bundle:
        """Check the files of a published version, then map them into memory. `pause` is called between the steps.

        Raises:
            StoreError: If the version is not published.
            BundleError: If a file differs from the published file, is not signed, or belongs to another version.
        """
        return self._open(self.path(version), version, pause)

    def close(self) -> None:
        """Stop an upload or a download in progress, so that the service can shut down. A store in a folder has none."""

    def activate(
        self, version: str, by: str | None = None, why: str = "", expected_generation: int | None = None
    ) -> ActivationRecord:
        """Make a version current, and return the new activation record.

        Args:
            version: The version.
            by: The user who activates the version; None means the user of this process.
            why: The reason, for the log.
            expected_generation: Generation that the store must have before the activation; None accepts any.

        Raises:
            StoreError: If the version is not published.
            BundleError: If the manifest of the version is broken.
            ActivationConflictError: If the store has another generation than expected, or another process activates a
                version at the same time.
        """
        self.manifest(version)

        def require_still_published() -> None:
            self.manifest(version)

        return self._state.activate(version, require_still_published, by or default_author(), why, expected_generation)

    def rollback(self, by: str | None = None, why: str = "") -> ActivationRecord:
        """Make the previous current version current again, and return the new activation record.

        Raises:
            StoreError: If there is no previous version.
            BundleError: If the manifest of the previous version is broken.
            ActivationConflictError: If another process activates a version at the same time.
        """
        self.require()
        return self._state.rollback(self._is_published, by or default_author(), why)

    def require_published(self, version: str) -> None:
        """Check that a version is published, without a download.

        Raises:
            StoreError: If the version is not published.
        """
        if check_version(version) not in self.versions():
            raise self._no_version(version)

    def incoming(self) -> contextlib.AbstractContextManager[Path]:
        """A temporary folder for writing a bundle. The folder is removed afterwards unless the bundle is published."""
        return self.local.incoming()

    def publish(self, folder: Path, version: str) -> None:
        """Publish a bundle that was written to a temporary folder.

        Raises:
            StoreError: If the version is malformed or already published: a published bundle never changes.
        """
        self.local.publish(folder, version)

    def publish_copy(self, folder: Path, version: str) -> None:
        """Publish a copy of a bundle's folder. Every copied file is compared with the manifest.

        Raises:
            StoreError: If the version is already published, or the store cannot be written to.
            BundleError: If the manifest is broken or not signed, or a copied file differs from the manifest.
        """
        with self.incoming() as copy:
            copy_manifest(folder, copy)
            manifest = self._read_manifest(copy, version)
            for name in manifest.files:
                shutil.copyfile(folder / name, copy / name)
            check_files(copy, manifest)
            self.publish(copy, version)

    def size_bytes(self, version: str) -> int:
        """Size of all files of a published version."""
        return sum(path.lstat().st_size for path in (self.bundles / version).iterdir())

    def remove(self, version: str, is_unused: Callable[[], bool]) -> bool:
        """Remove a published version if it is unused; return whether it was removed.

        Args:
            version: The version.
            is_unused: Function that decides under the lock of the store, so that an activation is either seen or fails.
        """
        with self.files.exclusive():
            if version not in self.local.versions() or not is_unused():
                return False
            self.local.remove(version)
            return True

    def remove_abandoned(self) -> None:
        """Remove the files of writers that were killed."""
        with self.files.exclusive():
            self.local.remove_abandoned()

    def _open(self, folder: Path, version: str, pause: Callable[[], None] | None = None) -> Bundle:
        bundle = open_bundle(folder, self._verify_key, pause)
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

    def _is_published(self, version: str) -> bool:
        try:
            self.manifest(version)
        except UnknownVersionError:
            return False
        return True


def copy_manifest(folder: Path, to: Path) -> None:
    """Copy the manifest of a bundle, and its signature if there is one."""
    for name in (MANIFEST, SIGNATURE):
        with contextlib.suppress(FileNotFoundError):  # a missing manifest is found when it is read
            shutil.copyfile(folder / name, to / name)


def _check_version_of(manifest: Manifest, version: str, folder: Path) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")
