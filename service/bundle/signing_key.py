"""The private key: signs manifests. Only commands read it; a serving process never does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from recollect.service.bundle.files import MANIFEST, SIGNATURE
from recollect.service.bundle.signing import VerifyKeys, read_keys
from recollect.service.errors import KeyFileError


class SigningKey:
    """An Ed25519 private key.

    Attributes:
        verify_keys: The matching public key.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.verify_keys = VerifyKeys([key.public_key()], "the signing key")

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content)


def read_signing_key(path: Path) -> SigningKey:
    """Read an Ed25519 private key without a passphrase, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        KeyFileError: If the file does not contain exactly one such key.
    """
    make = "write it, without a passphrase, with `openssl genpkey -algorithm ed25519 -out PRIVATE`"
    load = partial(load_pem_private_key, password=None)
    keys = read_keys(path, "PRIVATE KEY", load, Ed25519PrivateKey, make)  # type: ignore[type-abstract]
    if len(keys) > 1:
        raise KeyFileError(f"{path}: expected one private key, found {len(keys)}; write each key to a file of its own")
    return SigningKey(keys[0])


def sign_manifest(folder: Path, key: SigningKey) -> VerifyKeys:
    """Sign the manifest of a bundle. The manifest has the checksums of all other files, so they are signed too.

    Returns:
        The public key with which the signature can be verified.
    """
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))
    return key.verify_keys
