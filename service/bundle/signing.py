"""Signatures: whoever holds the private key says that a bundle is theirs; whoever holds the public key checks it.

`manifest.sig` is the Ed25519 signature (RFC 8032) of the bytes of `manifest.json`, bare, so that openssl checks it too:

    openssl pkeyutl -verify -pubin -inkey PUBLIC -rawin -in manifest.json -sigfile manifest.sig
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from service.bundle.manifest import MANIFEST, SIGNATURE, read_small
from service.errors import BundleError, KeyFileError

_SIGNATURE_BYTES = 64
_MOST_KEY_BYTES = 1 << 16
_PEM_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")

_Key = TypeVar("_Key")


class VerifyKey:
    """An Ed25519 public key, and what messages call it."""

    def __init__(self, key: Ed25519PublicKey, name: str) -> None:
        self._key, self._name = key, name

    def check(self, folder: Path, manifest: bytes) -> None:
        """Check the signature beside a manifest.

        Args:
            folder: The bundle's.
            manifest: The content of `manifest.json`, of which nothing has been believed yet.

        Raises:
            BundleError: If there is no signature, or another's, or one of other content.
        """
        path = folder / SIGNATURE
        if not os.path.lexists(path):
            raise BundleError(
                f"{path}: expected a signature for {self._name}, found none; "
                "build the bundle again with `recollect build --sign`"
            )
        try:
            self._key.verify(read_small(path, _SIGNATURE_BYTES), manifest)
        except InvalidSignature:
            raise BundleError(
                f"{folder / MANIFEST}: expected what {SIGNATURE} signs for {self._name}, found other content or "
                "another signature; build the bundle again, signed with the private half of that key"
            ) from None


def read_verify_key(path: Path) -> VerifyKey:
    """Read a public key, as `openssl pkey -pubout` writes it.

    Raises:
        KeyFileError: If it is anything else.
    """
    make = "write it with `openssl pkey -in PRIVATE -pubout -out PUBLIC`"
    key = read_key(path, "PUBLIC KEY", load_pem_public_key, Ed25519PublicKey, make)  # type: ignore[type-abstract]
    return VerifyKey(key, str(path))


def read_key(path: Path, label: str, load: Callable[[bytes], object], kind: type[_Key], make: str) -> _Key:
    """Read an Ed25519 key from a PEM file.

    No message tells more of the file's content than what sort of thing it is: it may be private.

    Args:
        path: The file.
        label: What must stand in its BEGIN line.
        load: Makes a key of its content.
        kind: What the key must be.
        make: What to do where it is not.

    Raises:
        KeyFileError: If the file holds no such key.
    """

    def refusal(found: str) -> KeyFileError:
        return KeyFileError(f"{path}: expected an Ed25519 {label.lower()} in PEM, found: {found}; {make}")

    try:
        with path.open("rb") as file:
            content = file.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise refusal(str(error.strerror)) from None
    if (begin := _PEM_LABEL.search(content)) is None:
        raise refusal("no PEM")
    if (found := begin[1].decode()) != label:
        raise refusal(f"PEM labelled {found}")
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm):  # their messages may quote the content
        raise refusal("one that is damaged, or of an unknown algorithm") from None
    if not isinstance(key, kind):
        raise refusal(f"one of another algorithm, {type(key).__name__}")
    return key
