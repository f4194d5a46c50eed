"""Generates requests that are not HTTP, not JSON, or not valid requests of the service, and some that are valid.

A seed and a number determine a request, so that a request of a report can be sent again.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

_FIELDS = ["query", "queries", "top_k", "lambda", "temperature", "top_b", "allow", "deny", "threshold", "explain"]
_SCALARS: list[Any] = [None, True, 0, -1, 1.5, 10**40, -(2**63), 1e308, "", " ", "x", "\x00", "é", "\ud800", [], {}]
_PATHS = ["/predict", "/predict/batch", "/version", "/labels/x", "/health/ready", "/metrics", "/openapi.json", "/docs"]
_MEGABYTE = 1 << 20


class Message(NamedTuple):
    """One request, or several bytes that are none.

    Attributes:
        kind: Name of the generator.
        parts: Bytes that are sent one after the other.
        pause_seconds: Pause between two parts.
        is_answered: Whether the service must answer; otherwise the client closes the connection after the last part.
    """

    kind: str
    parts: list[bytes]
    pause_seconds: float = 0.0
    is_answered: bool = True


def generate(seed: int, number: int) -> Message:
    """The request with this number."""
    source = random.Random(f"{seed}/{number}")
    (kind,) = source.choices(list(_KINDS), [weight for _, weight in _KINDS.values()])
    made = _KINDS[kind][0](source)
    return made._replace(kind=kind) if isinstance(made, Message) else Message(kind, [made])


def _post(body: bytes, path: str = "/predict", *fields: bytes, host: bytes = b"Host: x\r\n") -> bytes:
    head = b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\n" % (path.encode(), host)
    return head + b"".join(fields) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _get(path: bytes, *fields: bytes, method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (method, path, b"".join(fields))


def _chunked(chunks: bytes, encoding: bytes = b"chunked") -> bytes:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"Transfer-Encoding: %b\r\n\r\n%b" % (encoding, chunks)


def _query(source: random.Random) -> bytes:
    words = ["bread", "garden", "oven", "law", "音楽", "portrait", "sea", "zoo"]
    return json.dumps({"query": " ".join(source.choices(words, k=3)), "top_k": 3}).encode()


def _valid(source: random.Random) -> bytes:
    if source.random() < 0.3:
        return _get(source.choice(_PATHS[2:]).encode(), method=source.choice([b"GET", b"HEAD"]))
    return _post(_query(source))


def _smuggled(source: random.Random) -> bytes:
    body, hidden = _query(source), _get(b"/version")
    length = b"Content-Length: %d\r\n" % len(body)
    field = source.choice(
        [
            b"Transfer-Encoding: chunked\r\n" + length,
            length + b"Transfer-Encoding: chunked\r\n",
            length + b"Content-Length: %d\r\n" % source.randrange(10_000),
            b"Content-Length: +%d\r\n" % len(body),
            b"Content-Length: -1\r\n",
            b"Content-Length: 0x10\r\n",
            b"Content-Length: %d, %d\r\n" % (len(body), len(body)),
            b"Content-Length: %d\r\n" % 10 ** source.randrange(20, 60),
            b"Content-Length : %d\r\n" % len(body),
            b"Content-Length:\x0b%d\r\n" % len(body),
            length + b" folded\r\n",
            length.replace(b"\r\n", b"\n"),
            length + b"X: a\x00b\r\n",
            length + b"\x01: a\r\n",
            length + b": a\r\n",
            *(
                b"Transfer-Encoding: %b\r\n" % value
                for value in (
                    b"xchunked",
                    b"chunked, chunked",
                    b"\tchunked",
                    b"chunked\x0b",
                    b"identity",
                    b"gzip, chunked",
                )
            ),
        ]
    )
    end = source.choice([body, b"0\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)])
    return b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%b\r\n%b%b" % (field, end, hidden)


def _bad_chunks(source: random.Random) -> bytes:
    body = _query(source)
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    size = source.choice(
        [b"xyz", b"-1", b"f" * source.randrange(17, 40), b"0x5", b" 5", b"5 ", b"", b"5;" + b"e" * 100]
    )
    chunks = source.choice(
        [
            size + b"\r\nhello\r\n0\r\n\r\n",
            chunk[:-2] + b"0\r\n\r\n",
            chunk + b"0\r\nContent-Length: 5\r\nHost: y\r\n\r\n",
            chunk + b"0\r\n" + b"X: y\r\n" * source.randrange(8_000) + b"\r\n",
            chunk.replace(b"\r\n", b"\n") + b"0\n\n",
            b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
        ]
    )
    return _chunked(chunks)


def _huge_head(source: random.Random) -> bytes:
    size = source.randrange(1_000, 200_000)
    return source.choice(
        [
            _get(b"/" + b"x" * size),
            _get(b"/health/live", b"X-Long: " + b"x" * size + b"\r\n"),
            _get(b"/health/live", b"X: y\r\n" * (size // 6)),
            _get(b"/health/live", b"x" * size + b": y\r\n"),
            _get(b"/health/live?" + b"a=b&" * (size // 4)),
            b"GET / HTTP/1.1\r\nHost: " + b"x" * size + b"\r\n\r\n",
        ]
    )


def _bad_json(source: random.Random) -> bytes:
    query = _query(source)
    body = source.choice(
        [
            query[: source.randrange(len(query))],
            query[:-1] + b",}",
            query + query,
            b'{"query": NaN, "top_k": Infinity}',
            b'{"query": "x", "threshold": 1e999}',
            b'{"query": "x", "top_k": %d}' % 10 ** source.randrange(1, 4_000),
            b'{"query": "x", ' + b", ".join([b'"query": "y"'] * source.randrange(1, 1_000)) + b"}",
            b"{'query': 'x'}",
            b"\xef\xbb\xbf" + query,
            b"query=x",
            b"",
            b"null",
        ]
    )
    return _post(body, source.choice(_PATHS[:2]))


def _bad_utf8(source: random.Random) -> bytes:
    text = source.choice(
        [
            source.randbytes(source.randrange(1, 200)),
            b"\xc0\xaf",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            rb"\ud800",
            rb"\udc00\ud800",
            rb"\u0000",
            "query".encode("utf-16"),
        ]
    )
    return _post(b'{"query": "' + text + b'"}')


def _value(source: random.Random, depth: int = 0) -> Any:
    if depth < 3 and source.random() < 0.3:
        size = source.randrange(5)
        if source.random() < 0.5:
            return [_value(source, depth + 1) for _ in range(size)]
        return {source.choice([*_FIELDS, "a", ""]): _value(source, depth + 1) for _ in range(size)}
    return source.choice(_SCALARS)


def _wrong_types(source: random.Random) -> bytes:
    body: Any = {field: _value(source) for field in source.sample(_FIELDS, source.randrange(1, 5))}
    if source.random() < 0.5:
        body["query"] = "bread"
    if source.random() < 0.1:
        body = _value(source)
    return _post(json.dumps(body).encode(), source.choice(_PATHS[:2]))


def _nested(source: random.Random) -> bytes:
    depth = source.choice([10, 100, 200, 1_000, 100_000])
    opening, closing = source.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"query":', b"}")])
    whole = opening * depth + b"1" + closing * depth
    body = source.choice([whole, opening * depth, b'{"query": "x", "allow": ' + whole + b"}"])
    return _post(body[:_MEGABYTE])


def _odd_line(source: random.Random) -> bytes:
    method = source.choice(
        [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"get", b"G E T", b"PRI"]
    )
    path = source.choice(
        [
            *(known.encode() for known in _PATHS),
            *(b"*", b"//", b"/../../etc/passwd", b"/%00", b"/%2e%2e/", b"/labels/%ff%fe", b"/labels/", b"/\xff"),
            *(b"http://other/predict", b"http://[::1", b"/predict#x", b"/?" + b"%" * 50, b"x", b"", b"/ /"),
            b"/labels/" + b"%F0%9F%98%80" * source.randrange(200),
        ]
    )
    version = source.choice(
        [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.9", b"HTTP/", b"http/1.1", b""]
    )
    return b"%b %b %b\r\nHost: x\r\n\r\n" % (method, path, version)


def _truncated(source: random.Random) -> Message:
    whole = _valid(source)
    return Message("", [whole[: source.randrange(len(whole))]], is_answered=False)


def _pipelined(source: random.Random) -> bytes:
    wrong = _KINDS[source.choice(["random", "smuggled", "odd_line", "bad_json", "bad_chunks", "upgrade"])][0](source)
    assert isinstance(wrong, bytes)
    return _valid(source) * source.randrange(1, 5) + wrong + _valid(source)


def _upgrade(source: random.Random) -> bytes:
    protocol = source.choice([b"h2c", b"websocket", b"TLS/1.0", b"", b"h2c, websocket"])
    fields = b"Connection: %b\r\nUpgrade: %b\r\n" % (source.choice([b"Upgrade", b"upgrade, close", b"close"]), protocol)
    if source.random() < 0.5:
        fields += b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
    if source.random() < 0.3:
        return _get(b"/version", fields)
    if source.random() < 0.3:
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + source.randbytes(50)
    return _post(_query(source), "/predict", fields) * source.randrange(1, 3)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(100 * _MEGABYTE))


def _encoded(source: random.Random) -> bytes:
    field = b"Content-Encoding: %b\r\n" % source.choice([b"gzip", b"deflate", b"br", b"gzip, gzip", b"zstd", b"x"])
    return _post(source.choice([_bomb(), gzip.compress(_query(source)), b""]), "/predict", field)


def _duplicates(source: random.Random) -> bytes:
    fields = [b"Host: y\r\n", b"Content-Type: text/plain\r\n", b"X-Request-Id: a\r\n", b"Content-Length: 3\r\n"]
    fields += [b"Authorization: Bearer a\r\n", b"Host: a b\r\n", b"Expect: 100-continue\r\n", b"Expect: x\r\n"]
    host = source.choice([b"Host: x\r\n", b"", b"Host: \xff\r\n", b"Host: a/b\r\n"])
    return _post(_query(source), "/predict", *source.choices(fields, k=source.randrange(1, 6)), host=host)


def _slow(source: random.Random) -> Message:
    whole = _post(_query(source))
    size = source.randrange(10, 60)
    return Message("", [whole[start : start + size] for start in range(0, len(whole), size)], pause_seconds=0.002)


@functools.cache
def _large_bodies() -> list[bytes]:
    return [
        body
        for size in (_MEGABYTE - 100, _MEGABYTE + 100, 3 * _MEGABYTE)
        for body in (
            b'{"query": "' + b" " * size + b'"}',
            b'{"query": "' + b"a" * size + b'"}',
            b'{"query": "' + b"ab " * (size // 3) + b'"}',
            b'{"queries": [' + b",".join([b"1"] * (size // 2)) + b"]}",
            b'{"query": "x", "allow": [' + b",".join([b'"a"'] * (size // 4)) + b"]}",
            b"{" + b",".join(b'"%x":1' % number for number in range(size // 12)) + b"}",
            b'{"query": "' + b":" * 2_000 + b'"' * (size - 2_000) + b"}",
            b'{"query": "x",' + b",".join([b'":":":"'] * (size // 8)) + b"}",
        )
    ]


def _large(source: random.Random) -> bytes:
    return _post(source.choice(_large_bodies()), source.choice(_PATHS[:2]))


def _random(source: random.Random) -> bytes:
    return source.randbytes(source.randrange(1, 300)) + b"\r\n\r\n"


def _mutated(source: random.Random) -> Message:
    whole = bytearray(_valid(source))
    for _ in range(source.randrange(1, 6)):
        at = source.randrange(len(whole))
        match source.randrange(3):
            case 0:
                whole[at] = source.randrange(256)
            case 1:
                del whole[at : at + source.randrange(1, 10)]
            case _:
                whole[at:at] = source.randbytes(source.randrange(1, 10))
    return Message("", [bytes(whole)], is_answered=False)


# The generator and the weight of each kind.
_KINDS: dict[str, tuple[Callable[[random.Random], bytes | Message], float]] = {
    "valid": (_valid, 5),
    "smuggled": (_smuggled, 10),
    "bad_chunks": (_bad_chunks, 8),
    "huge_head": (_huge_head, 4),
    "bad_json": (_bad_json, 10),
    "bad_utf8": (_bad_utf8, 6),
    "wrong_types": (_wrong_types, 10),
    "nested": (_nested, 4),
    "odd_line": (_odd_line, 8),
    "truncated": (_truncated, 6),
    "pipelined": (_pipelined, 6),
    "upgrade": (_upgrade, 6),
    "encoded": (_encoded, 1),
    "duplicates": (_duplicates, 5),
    "slow": (_slow, 2),
    "large": (_large, 0.5),
    "random": (_random, 5),
    "mutated": (_mutated, 10),
}
