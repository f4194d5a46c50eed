"""Key files of every sort that someone may hand over, written as openssl and ssh-keygen write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

# What is neither the private nor the public key wanted, and what a message must say of it.
NEITHER = {
    "encrypted": "PEM labelled ENCRYPTED PRIVATE KEY",
    "traditional": "PEM labelled RSA PRIVATE KEY",
    "openssh": "PEM labelled OPENSSH PRIVATE KEY",
    "openssh-public": "no PEM",
    "raw": "no PEM",
    "empty": "no PEM",
    "text": "no PEM",
    "folder": "Is a directory",
    "missing": "No such file or directory",
}
NO_PRIVATE_KEY = NEITHER | {
    "public": "PEM labelled PUBLIC KEY",
    "rsa": "one of another algorithm, RSAPrivateKey",
    "ec": "one of another algorithm, ECPrivateKey",
    "ed448": "one of another algorithm, Ed448PrivateKey",
    "x25519": "one of another algorithm, X25519PrivateKey",
    "damaged": "one that is damaged",
}
NO_PUBLIC_KEY = NEITHER | {
    "private": "PEM labelled PRIVATE KEY",
    "rsa-public": "one of another algorithm, RSAPublicKey",
    "ec-public": "one of another algorithm, ECPublicKey",
    "ed448-public": "one of another algorithm, Ed448PublicKey",
    "x25519-public": "one of another algorithm, X25519PublicKey",
    "damaged-public": "one that is damaged",
}


class Pair(NamedTuple):
    private: Path
    public: Path


def write_pair(folder: Path) -> Pair:
    """A new Ed25519 key pair."""
    return _write_pair(folder, "private", "public", ed25519.Ed25519PrivateKey.generate())


def write_every_sort(folder: Path) -> None:
    """A file for each name in `NO_PRIVATE_KEY` and `NO_PUBLIC_KEY`, but for the one that is missing."""
    wanted = ed25519.Ed25519PrivateKey.generate()
    others = {
        "rsa": rsa.generate_private_key(65537, 2048),
        "ec": ec.generate_private_key(ec.SECP256R1()),
        "ed448": ed448.Ed448PrivateKey.generate(),
        "x25519": x25519.X25519PrivateKey.generate(),
    }
    pair = _write_pair(folder, "private", "public", wanted)
    for name, key in others.items():
        _write_pair(folder, name, f"{name}-public", key)
    pem, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    contents = {
        "encrypted": wanted.private_bytes(pem, pkcs8, BestAvailableEncryption(b"passphrase")),
        "traditional": others["rsa"].private_bytes(pem, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "openssh": wanted.private_bytes(pem, PrivateFormat.OpenSSH, NoEncryption()),
        "openssh-public": wanted.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        "raw": wanted.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()),
        "empty": b"",
        "text": b"the key is under the mat\n",
        "damaged": _without_last_letters(pair.private.read_bytes()),
        "damaged-public": _without_last_letters(pair.public.read_bytes()),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()


def secrets(path: Path) -> list[str]:
    """The lines of a key file that no message may repeat."""
    if not path.is_file():
        return []
    lines = path.read_bytes().decode("latin-1").splitlines()
    return [line for line in lines if len(line) >= 8 and "-----" not in line]


def _write_pair(folder: Path, private: str, public: str, key: Any) -> Pair:
    pair = Pair(folder / private, folder / public)
    pair.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return pair


def _without_last_letters(pem: bytes) -> bytes:
    first, body, *rest = pem.splitlines(keepends=True)
    return b"".join([first, body[:-9] + b"\n", *rest])
