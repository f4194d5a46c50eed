"""Signatures: the owner of a private key signs a manifest; the public key verifies the signature.

`manifest.sig` is the raw Ed25519 signature (RFC 8032) of the bytes of `manifest.json`. openssl can verify it too:

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

from service.bundle.files import MANIFEST, SIGNATURE, read_small
from service.errors import BundleError, KeyFileError

_SIGNATURE_BYTES = 64
_MAX_KEY_BYTES = 1 << 16
_PEM_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")

_Key = TypeVar("_Key")


class VerifyKey:
    """An Ed25519 public key, and the key's name in error messages."""

    def __init__(self, key: Ed25519PublicKey, name: str) -> None:
        self._key, self._name = key, name

    def check(self, folder: Path, manifest: bytes) -> None:
        """Check that the signature file of a bundle contains this key's signature of the manifest.

        Args:
            folder: Folder of the bundle.
            manifest: Content of `manifest.json`, not parsed yet: unsigned content is not trusted.

        Raises:
            BundleError: If the signature is missing, or is not the key's signature of this content.
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
                f"{folder / MANIFEST}: expected the content that {SIGNATURE} signs for {self._name}, found other "
                "content or another signature; build the bundle again and sign it with the matching private key"
            ) from None


def read_verify_key(path: Path) -> VerifyKey:
    """Read an Ed25519 public key in PEM, the format that `openssl pkey -pubout` writes.

    Raises:
        KeyFileError: If the file contains no such key.
    """
    make = "write it with `openssl pkey -in PRIVATE -pubout -out PUBLIC`"
    key = read_key(path, "PUBLIC KEY", load_pem_public_key, Ed25519PublicKey, make)  # type: ignore[type-abstract]
    return VerifyKey(key, str(path))


def read_key(path: Path, label: str, load: Callable[[bytes], object], kind: type[_Key], make: str) -> _Key:
    """Read an Ed25519 key from a PEM file.

    Error messages name only the kind of the content, never the content itself: the file may contain a private key.

    Args:
        path: Path of the PEM file.
        label: Label that the BEGIN line of the file must have.
        load: Function that parses the content of the file.
        kind: Type that the parsed key must have.
        make: Last part of the error message: how to create such a file.

    Raises:
        KeyFileError: If the file contains no such key.
    """

    def refusal(found: str) -> KeyFileError:
        return KeyFileError(f"{path}: expected an Ed25519 {label.lower()} in PEM, found: {found}; {make}")

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise refusal(str(error.strerror)) from None
    if (begin := _PEM_LABEL.search(content)) is None:
        raise refusal("no PEM")
    if (found := begin[1].decode()) != label:
        raise refusal(f"PEM labelled {found}")
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm):  # the library's message may quote the content
        raise refusal("one that is damaged, or of an unknown algorithm") from None
    if not isinstance(key, kind):
        raise refusal(f"one of another algorithm, {type(key).__name__}")
    return key
