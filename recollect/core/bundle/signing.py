"""Signatures: the owner of a private key signs a manifest; a public key verifies the signature.

`manifest.sig` is the raw Ed25519 signature (RFC 8032) of the bytes of `manifest.json`. openssl can verify it too:

    openssl pkeyutl -verify -pubin -inkey PUBLIC -rawin -in manifest.json -sigfile manifest.sig
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from recollect.core.bundle.files import MANIFEST, SIGNATURE
from recollect.core.errors import BundleError, KeyFileError

SIGNATURE_BYTES = 64
_MAX_KEY_FILE_BYTES = 1 << 16
_PEM_BEGIN = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")

_Key = TypeVar("_Key")


class VerifyKeys:
    """Ed25519 public keys. A signature by any one of them is accepted, so that a key can be replaced by another one."""

    def __init__(self, keys: Sequence[Ed25519PublicKey], name: str) -> None:
        self._keys, self.name = keys, name

    def check(self, folder: str, manifest: bytes, signature: bytes | None) -> None:
        """Check that the signature of a bundle is a signature of its manifest by one of these keys.

        Args:
            manifest: Content of `manifest.json`, not parsed yet: unsigned content is not trusted.
            signature: Content of `manifest.sig`; None if there is no such file.
        """
        if signature is None:
            raise BundleError(
                f"{folder}/{SIGNATURE}: expected a signature for {self.name}, found none; "
                "build the bundle again with `recollect build --sign`"
            )
        for key in self._keys:
            with contextlib.suppress(InvalidSignature):
                key.verify(signature, manifest)
                return
        raise BundleError(
            f"{folder}/{MANIFEST}: expected the content that {SIGNATURE} signs for {self.name}, found other "
            "content or another signature; build the bundle again and sign it with the matching private key"
        )


def read_verify_keys(path: Path) -> VerifyKeys:
    """Read one or several Ed25519 public keys in PEM, the format that `openssl pkey -pubout` writes."""
    make = "write it with `openssl pkey -in PRIVATE -pubout -out PUBLIC`"
    keys = read_keys(path, "PUBLIC KEY", load_pem_public_key, Ed25519PublicKey, make)  # type: ignore[type-abstract]
    return VerifyKeys(keys, str(path))


def read_keys(path: Path, label: str, load: Callable[[bytes], object], kind: type[_Key], make: str) -> list[_Key]:
    """Read all Ed25519 keys from a PEM file. Text between the keys is ignored.

    Error messages name only the kind of the content, never the content itself: the file may contain a private key.

    Args:
        label: Label that every BEGIN line of the file must have.
        make: Last part of the error message: how to create such a file.

    Raises:
        KeyFileError: If the file contains no key, or something else than such keys in a PEM block.
    """

    def refusal(found: str) -> KeyFileError:
        return KeyFileError(f"{path}: expected an Ed25519 {label.lower()} in PEM, found: {found}; {make}")

    def load_one(block: bytes) -> _Key:
        try:
            key = load(block)
        except (ValueError, UnsupportedAlgorithm):  # the library's message may quote the content
            raise refusal("one that is damaged, or of an unknown algorithm") from None
        if not isinstance(key, kind):
            raise refusal(f"one of another algorithm, {type(key).__name__}")
        return key

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise refusal(str(error.strerror)) from None
    if len(content) > _MAX_KEY_FILE_BYTES:
        raise refusal(f"more than {_MAX_KEY_FILE_BYTES:,} bytes")
    begins = list(_PEM_BEGIN.finditer(content))
    if not begins:
        raise refusal("no PEM")
    for begin in begins:
        if (found := begin[1].decode()) != label:
            raise refusal(f"PEM labelled {found}")
    ends = [*(begin.start() for begin in begins[1:]), len(content)]
    return [load_one(content[begin.start() : end]) for begin, end in zip(begins, ends, strict=True)]


# Only commands that publish a bundle read such a key; a serving process never does.
SigningKey = Ed25519PrivateKey


def read_signing_key(path: Path) -> SigningKey:
    """Read one Ed25519 private key without a passphrase, as `openssl genpkey -algorithm ed25519` writes it."""
    make = "write it, without a passphrase, with `openssl genpkey -algorithm ed25519 -out PRIVATE`"
    load = partial(load_pem_private_key, password=None)
    keys = read_keys(path, "PRIVATE KEY", load, Ed25519PrivateKey, make)  # type: ignore[type-abstract]
    if len(keys) > 1:
        raise KeyFileError(f"{path}: expected one private key, found {len(keys)}; write each key to a file of its own")
    return keys[0]


def sign_manifest(folder: Path, key: SigningKey) -> VerifyKeys:
    """Sign the manifest of a bundle, and return the public key that verifies the signature.

    The manifest has the checksums of all other files, so they are signed too.
    """
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))
    return VerifyKeys([key.public_key()], "the signing key")
