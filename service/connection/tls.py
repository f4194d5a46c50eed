"""TLS: the certificate of the service. New connections use a new certificate when the files change."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from recollect.service.errors import SettingsError

log = structlog.get_logger(__name__)

# Permissions of a private key that let other users than its owner and its group read it.
_READABLE_BY_OTHERS = 0o004


class Tls:
    """The TLS of new connections.

    Attributes:
        context: The context of a server. It uses the certificate that was loaded last.

    Args:
        certificate: File with the certificate and its chain, in PEM format.
        key: File with the certificate's private key, in PEM format, without a password.

    Raises:
        SettingsError: If a file cannot be read, or the files do not belong together.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._last_state = self._state()
        self.context = self._loaded = self._load()
        self.context.sni_callback = self._use_loaded  # OpenSSL calls it for every connection, also without a name
        if (mode := key.stat().st_mode) & _READABLE_BY_OTHERS:
            log.warning("tls_key_readable_by_others", path=str(key), mode=f"{mode & 0o777:o}")

    def reload_if_changed(self) -> None:
        """Load the files if they have changed. Keep the certificate in use if the new files are wrong."""
        if (state := self._state()) == self._last_state:
            return
        self._last_state = state
        try:
            self._loaded = self._load()
        except SettingsError as error:  # often only until the second file is replaced too
            log.error("tls_reload_failed", error=str(error))
        else:
            log.info("tls_reloaded", certificate=str(self._certificate))

    def _use_loaded(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._loaded

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for flag, path in (("--tls-cert", self._certificate), ("--tls-key", self._key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise SettingsError(f"{flag} {path}: expected a file in PEM format, found: {error.strerror}") from None
        try:
            context.load_cert_chain(self._certificate, self._key, _no_password)
        except (OSError, ValueError) as error:  # OSError: also if a file is removed after it was read above
            reason = getattr(error, "reason", None) or "no PEM block"
            raise SettingsError(
                f"--tls-cert {self._certificate}, --tls-key {self._key}: expected a certificate and its private key "
                f"in PEM format, without a password, found: {str(reason).lower().replace('_', ' ')}"
            ) from None
        return context

    def _state(self) -> object:
        """A value that changes when the content of a file changes."""
        try:
            files = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return None
        return [(file.st_ino, file.st_size, file.st_mtime_ns) for file in files]


def _no_password() -> str:
    """The password of an encrypted key: a wrong one, because OpenSSL would otherwise ask for it on the terminal."""
    return ""
