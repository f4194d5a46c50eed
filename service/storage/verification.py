"""Opens the folders of bundles: checks signature, manifest, checksums and version first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from recollect.service.bundle.bundle import Bundle, open_bundle
from recollect.service.bundle.integrity import read_manifest
from recollect.service.bundle.manifest import Manifest
from recollect.service.bundle.signing import VerifyKeys
from recollect.service.errors import BundleError
from recollect.service.reloaded_file import ReloadedFile


class Verification:
    """The checks that a store makes before it uses a bundle.

    Args:
        keys: Public keys; one of them must have signed each bundle. None: bundles need no signature.
    """

    def __init__(self, keys: ReloadedFile[VerifyKeys] | None) -> None:
        self._keys = keys

    def open(
        self,
        folder: Path,
        version: str,
        pause: Callable[[], None] | None = None,
        share_with: Sequence[Bundle] = (),
    ) -> Bundle:
        """Check the files of a bundle, then map them into memory. The arguments are as in `open_bundle`.

        Raises:
            BundleError: If a file is not the published file, is not signed, or belongs to another version.
        """
        bundle = open_bundle(folder, self._current_keys(), pause, share_with)
        _check_version_of(bundle.manifest, version, folder)
        return bundle

    def read_manifest(self, folder: Path, version: str) -> Manifest:
        """Check and read the manifest of a bundle. The other files are not needed.

        Raises:
            BundleError: If the manifest is broken, is not signed, or belongs to another version.
        """
        manifest = read_manifest(folder, self._current_keys())
        _check_version_of(manifest, version, folder)
        return manifest

    def _current_keys(self) -> VerifyKeys | None:
        return self._keys.content if self._keys else None


def _check_version_of(manifest: Manifest, version: str, folder: Path) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")
