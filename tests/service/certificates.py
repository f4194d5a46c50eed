"""TLS certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate(NamedTuple):
    """The files of a certificate that signs itself, and of its private key."""

    certificate: Path
    key: Path

    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


def write_certificate(
    folder: Path, password: bytes | None = None, subject: str = "localhost", days: float = 1
) -> Certificate:
    """Write a new certificate of 127.0.0.1, which ends in some days, and its key; replace those in the same folder.

    A client that trusts two certificates of the same subject accepts only one of them.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    files = Certificate(folder / "certificate.pem", folder / "key.pem")
    for path, content in zip(files, (certificate.public_bytes(serialization.Encoding.PEM), private), strict=True):
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(0o600)
        new.rename(path)
    return files
