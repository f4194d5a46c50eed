"""The HTTP parser of a connection: httptools' parser, which stops at an upgrade, and goes on as HTTP/1.1.

A client may offer another protocol with `Upgrade`, such as HTTP/2 (`h2c`) or WebSocket, and a server may ignore the
offer (RFC 9110, section 7.8). Clients with such an offer in every first request are `curl --http2` and Java's
`HttpClient`. httptools has no option to ignore the offer: the parser stops after the head, and loses the body.
"""

from __future__ import annotations

from typing import Protocol

import httptools


class Connection(Protocol):
    """The object whose methods httptools calls, with the head that these calls have collected.

    `refused` is True when the connection ignores all further bytes.
    """

    refused: bool
    url: bytes
    headers: list[tuple[bytes, bytes]]


class RequestParser:
    """Parses the requests of a connection.

    For a request with an offer to upgrade, httptools calls the methods of the connection twice: `on_message_begin` to
    `on_message_complete` without a body while `should_upgrade` returns True, and then for the whole request without the
    field `Upgrade`. The connection must ignore the end of the head and the end of the message in the first round.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes.

        Raises:
            httptools.HttpParserError: If they are not HTTP/1.
        """
        rest: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as stop:
                if self._connection.refused:
                    return
                rest = memoryview(rest)[stop.args[0] :]
                head = self._head_without_upgrade()
                self._parser = self._new_parser()
                self._parser.feed_data(head)
            else:
                return

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def should_upgrade(self) -> bool:
        return self._parser.should_upgrade()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._connection)
        # Requests after one with `Connection: close` are ignored, as uvicorn does it.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head_without_upgrade(self) -> bytes:
        """The head at which the parser has stopped, without the field `Upgrade`."""
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._connection.url, version)]
        lines += [b"%b: %b" % field for field in self._connection.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
