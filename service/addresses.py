"""Network addresses that a service listens on."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

from recollect.core.errors import AddressError

# Number of connections that may wait until the server accepts them.
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address. Connections are refused until `start_listening` is called.

    Raises:
        AddressError: If the port is in use or the address is not one of this machine.
    """
    with _address_errors(f"{host}:{port}"):
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address[:2])
        except OSError:
            bound.close()
            raise
        return bound


def start_listening(bound: socket.socket) -> None:
    """Let connections wait in the socket's backlog until a server accepts them.

    Raises:
        AddressError: If another process has reserved the same address, and listened first.
    """
    host, port = bound.getsockname()[:2]
    with _address_errors(f"{host}:{port}"):
        bound.listen(_BACKLOG)


def url(bound: socket.socket, tls: bool = False) -> str:
    host, port = bound.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _address_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is not valid in DNS
        reason = str(error).split("] ")[-1]  # without the error's number
        raise AddressError(
            f"{address}: expected an address to listen on, found: {reason}; "
            "choose another host or port (0: any free port)"
        ) from None
