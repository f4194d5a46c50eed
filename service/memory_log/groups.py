r"""Groups: all entries that one commit appends to a log, with their checksum and, in a signed log, their signature.

    group     = head + body + signature (0 or 64 bytes) + digest (32 bytes)
    head      = "RML1" + length of the body + first sequence number + number of entries + length of the signature
                + dimensions of the vectors + SHA-256 of the encoder + digest of the group before
                + CRC-32 of the head before it
    digest    = SHA-256(head + body)
    signature = Ed25519 (RFC 8032) of "recollect memory log\n" + digest

Each digest covers the digest before it, so a group that was changed, moved or left out is found. The head has its own
checksum: a damaged length cannot make the rest of a file look like a write that was interrupted.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Maximum size of a body. A reader has one whole group in memory.
MAX_BODY_BYTES = 256 << 20
# The digest before the first group of a log.
NO_DIGEST = bytes(hashlib.sha256().digest_size)

_MAGIC = b"RML1"
_HEAD = struct.Struct("<4sIQIII32s32s")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CRC.size
_SIGNATURE_BYTES = 64
_SIGNED_PREFIX = b"recollect memory log\n"

MAX_GROUP_BYTES = _HEAD_BYTES + MAX_BODY_BYTES + _SIGNATURE_BYTES + len(NO_DIGEST)


class Place(NamedTuple):
    """A place between two groups.

    Attributes:
        sequence: Sequence number of the last entry before the place; 0 at the beginning.
        digest: Digest of the group before the place; None if it is not known, because older segments were removed.
    """

    sequence: int
    digest: bytes | None


class EncoderOfGroup(NamedTuple):
    """The encoder that made the vectors of a group: the SHA-256 of its files, and its dimensions."""

    sha256: bytes
    dim: int


class Group(NamedTuple):
    """A group that was read.

    Attributes:
        entries: Number of its entries.
        encoder: The encoder of its vectors.
        body: Its entries, one after the other.
        signature: Its signature; empty if the group is not signed.
        end: The place after the group.
        content: All its bytes.
    """

    entries: int
    encoder: EncoderOfGroup
    body: memoryview
    signature: bytes
    end: Place
    content: memoryview


def encode_group(
    before: Place, encoder: EncoderOfGroup, entries: Sequence[bytes], sign: Callable[[bytes], bytes] | None = None
) -> tuple[bytes, Place]:
    """Encode a group.

    Args:
        before: The place of the group.
        encoder: The encoder of its vectors.
        entries: The encoded entries.
        sign: Function that signs bytes; None: the group is not signed.

    Returns:
        The group, and the place after it.
    """
    body = b"".join(entries)
    head = _HEAD.pack(
        _MAGIC,
        len(body),
        before.sequence + 1,
        len(entries),
        _SIGNATURE_BYTES if sign else 0,
        encoder.dim,
        encoder.sha256,
        before.digest or NO_DIGEST,
    )
    head += _CRC.pack(zlib.crc32(head))
    digest = _digest(head, body)
    content = b"".join((head, body, sign(signed_bytes(digest)) if sign else b"", digest))
    return content, Place(before.sequence + len(entries), digest)


def read_group(content: memoryview, before: Place) -> Group | None:
    """Read the group at the beginning of some bytes.

    Args:
        content: All bytes from the beginning of the group to the end of its file, or MAX_GROUP_BYTES of them.
        before: The place of the group.

    Returns:
        The group; None if its write was interrupted: the file ends before the group does, or has zeros in its place.

    Raises:
        ValueError: If the bytes are something else. The message names the reason.
    """
    if not any(content[_HEAD_BYTES:]):
        return None
    magic, body_bytes, first, entries, signature_bytes, dim, encoder, digest_before = _HEAD.unpack_from(content)
    (crc,) = _CRC.unpack_from(content, _HEAD.size)
    if (
        crc != zlib.crc32(content[: _HEAD.size])
        or magic != _MAGIC
        or body_bytes > MAX_BODY_BYTES
        or entries == 0
        or signature_bytes not in (0, _SIGNATURE_BYTES)
    ):
        raise ValueError("expected the head of a group of entries, found other bytes")
    digest_at = _HEAD_BYTES + body_bytes + signature_bytes
    end = digest_at + len(NO_DIGEST)
    if len(content) < end or (len(content) == end and not any(content[digest_at:end])):
        return None
    body, digest = content[_HEAD_BYTES : _HEAD_BYTES + body_bytes], bytes(content[digest_at:end])
    if digest != _digest(content[:_HEAD_BYTES], body):
        raise ValueError("expected entries with the checksum in their group, found changed bytes")
    if first != before.sequence + 1 or digest_before != (before.digest or digest_before):
        raise ValueError(
            f"expected entry {before.sequence + 1} after the group before, found entry {first} after another group"
        )
    signature = bytes(content[digest_at - signature_bytes : digest_at])
    return Group(
        entries, EncoderOfGroup(encoder, dim), body, signature, Place(before.sequence + entries, digest), content[:end]
    )


def signed_bytes(digest: bytes) -> bytes:
    """The bytes that a signature covers. No manifest and no activation record begins like them."""
    return _SIGNED_PREFIX + digest


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.digest()
