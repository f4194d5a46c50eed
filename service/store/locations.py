"""Open the store at a location: a folder or a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from recollect.service.store.store import Store


def open_store(location: Path | str, verify_key: Path | None = None, bundle_cache: Path | None = None) -> Store:
    """Open the store in a folder or at a URL such as `s3://bucket/store`. The URL `file:///folder` means a folder.

    Args:
        location: The folder or the URL.
        verify_key: File of public keys; every bundle must have a signature by one of their private keys. None: bundles
            need no signature.
        bundle_cache: Folder for copies of bundles from a URL, and of bundles that must have a signature. None: the
            user's cache folder.

    Raises:
        KeyFileError: If `verify_key` is not a file of Ed25519 public keys.
        StoreError: If the URL's scheme is unknown, or no folder for copies of bundles can be found.
    """
    if isinstance(location, Path) or "://" not in location:
        return Store(Path(location), verify_key, bundle_cache)
    if location.startswith("file://"):
        return Store(Path(unquote(urlsplit(location).path)), verify_key, bundle_cache)
    return Store(location, verify_key, bundle_cache)
