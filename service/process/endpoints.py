"""The addresses of a service, with TLS or without: the public interface, and the admin interface."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

from recollect.service.addresses import bind, is_loopback, url
from recollect.service.connection.tls import Tls
from recollect.service.serve_settings import ServeSettings


class Endpoint(NamedTuple):
    """A reserved address, and the TLS of its connections; None for connections without TLS."""

    bound: socket.socket
    tls: Tls | None

    @property
    def url(self) -> str:
        return url(self.bound, tls=self.tls is not None)


class Endpoints(NamedTuple):
    """The addresses of a process; `admin` is None if the process has no admin interface."""

    public: Endpoint
    admin: Endpoint | None

    def close(self) -> None:
        """Close the sockets, so that new connections are refused when no other process accepts them."""
        for endpoint in self:
            if endpoint is not None:
                endpoint.bound.close()


@contextlib.contextmanager
def reserve(settings: ServeSettings, bound: socket.socket | None = None) -> Iterator[Endpoints]:
    """Reserve the addresses of a service, and load its certificate.

    The admin interface uses the same certificate, except on a loopback address, which needs no TLS.

    Args:
        settings: All settings of the service.
        bound: A socket from `bind` that is used instead of --host and --port.

    Raises:
        AddressError: If an address is not available.
        SettingsError: If the certificate or its key cannot be used.
    """
    with contextlib.ExitStack() as stack:
        public = bound or stack.enter_context(bind(settings.host, settings.port))
        admin = None
        if settings.admin_port is not None:
            admin = stack.enter_context(bind(settings.admin_host, settings.admin_port))
        tls = Tls(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        admin_tls = None if is_loopback(settings.admin_host) else tls
        yield Endpoints(Endpoint(public, tls), Endpoint(admin, admin_tls) if admin else None)
