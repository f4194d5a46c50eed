"""Network addresses that a service listens on."""

from __future__ import annotations

import ipaddress
import socket

from service.errors import AddressError


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. New connections wait in the socket's backlog until a server accepts them.

    Raises:
        AddressError: If the port is in use or the address is not one of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is not valid in DNS
        reason = str(error).split(" (")[0].split("] ")[-1]  # the other parts of the message repeat the address
        raise AddressError(
            f"{host}:{port}: expected an address to listen on, found: {reason}; "
            "choose another host or port (0: any free port)"
        ) from None


def url(listener: socket.socket) -> str:
    """URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
