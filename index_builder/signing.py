"""Sign bundles. No other module reads a private key."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from service.bundle.files import MANIFEST, SIGNATURE
from service.bundle.signing import VerifyKeys, read_keys
from service.errors import KeyFileError


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read an Ed25519 private key without a passphrase, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        KeyFileError: If the file does not contain exactly one such key.
    """
    make = "write it, without a passphrase, with `openssl genpkey -algorithm ed25519 -out PRIVATE`"
    load = partial(load_pem_private_key, password=None)
    keys = read_keys(path, "PRIVATE KEY", load, Ed25519PrivateKey, make)  # type: ignore[type-abstract]
    if len(keys) > 1:
        raise KeyFileError(f"{path}: expected one private key, found {len(keys)}; write each key to a file of its own")
    return keys[0]


def sign_manifest(folder: Path, key: Ed25519PrivateKey) -> VerifyKeys:
    """Sign the manifest of a bundle. The manifest has the checksums of all other files, so they are signed too.

    Returns:
        The public key with which the signature can be verified.
    """
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))
    return VerifyKeys([key.public_key()], "the signing key")
