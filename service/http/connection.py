"""The connection of a request, and whether its client still waits for the answer.

A client that has gone may have sent a newer change to another replica, which an older one would overwrite. So a change
is made only while its client waits. If another process writes to the log of the memory between this check and the
change, the log decides the change again, with a new check.

A process that was suspended (SIGSTOP, or a virtual machine that was paused) can continue a change before its event loop
has read that the client disconnected. So the thread of the change asks the kernel.
"""

from __future__ import annotations

import asyncio
import select

from starlette.requests import Request
from starlette.types import Scope

from recollect.core.errors import ClientGoneError

# Extension of an ASGI scope that contains the transport of the client's connection.
_EXTENSION = "recollect.connection"
# Linux reports with this event that the client has closed its side, also if bytes before the end were not read.
_CLOSED = getattr(select, "POLLRDHUP", 0)


def add_connection(scope: Scope, connection: asyncio.Transport) -> None:
    scope["extensions"] = {_EXTENSION: connection}


def require_waiting(request: Request) -> None:
    """Raise `ClientGoneError`, in any thread, if the client does not wait for its change any more."""
    connection = request.scope.get("extensions", {}).get(_EXTENSION)
    if connection is not None and _is_closed(connection):
        raise ClientGoneError


def _is_closed(connection: asyncio.Transport) -> bool:
    """Whether the client or the event loop has closed a connection."""
    opened = None if connection.is_closing() else connection.get_extra_info("socket")
    if opened is None or (descriptor := opened.fileno()) < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, _CLOSED)
    # Ask again: after the event loop has closed this connection, another one can have the descriptor.
    return bool(poll.poll(0)) or connection.is_closing()
