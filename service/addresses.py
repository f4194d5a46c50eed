"""Addresses: where a service listens, and who can reach it there."""

from __future__ import annotations

import ipaddress
import socket

from service.errors import AddressError


def listen(host: str, port: int) -> socket.socket:
    """Take an address; requests wait there until they are answered.

    Raises:
        AddressError: If the port is taken or the address is not ours.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot hold
        reason = str(error).split(" (")[0].split("] ")[-1]  # the rest repeats the address
        raise AddressError(
            f"{host}:{port}: expected an address to listen on, found: {reason}; "
            "choose another host or port (0: any free port)"
        ) from None


def url(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
