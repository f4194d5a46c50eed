"""Signing: the only code that reads a private key."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from service.bundle.files import MANIFEST, SIGNATURE
from service.bundle.signing import VerifyKey, read_key


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key without a passphrase, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        KeyFileError: If it is anything else.
    """
    make = "write it, without a passphrase, with `openssl genpkey -algorithm ed25519 -out PRIVATE`"
    load = partial(load_pem_private_key, password=None)
    return read_key(path, "PRIVATE KEY", load, Ed25519PrivateKey, make)  # type: ignore[type-abstract]


def sign_manifest(folder: Path, key: Ed25519PrivateKey) -> VerifyKey:
    """Sign a written manifest, and with it every file that it lists.

    Returns:
        The key with which the bundle opens from now on.
    """
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))
    return VerifyKey(key.public_key(), "the key that signed it")
