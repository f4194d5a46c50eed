r"""Groups: all entries that one commit appends to a log, with their checksum.

    group  = head + body + digest (32 bytes)
    head   = "RML1" + length of the body + first sequence number + number of entries + dimensions of the vectors
             + SHA-256 of the encoder + digest of the group before + CRC-32 of the head before it
    digest = SHA-256(head + body)

Each digest covers the digest before it, so a group that was changed, moved or left out is found. The head has its own
checksum: a damaged length cannot make the rest of a file look like a write that was interrupted.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

# Maximum size of a body. A reader has one whole group in memory.
MAX_BODY_BYTES = 256 << 20
# The digest before the first group of a log.
NO_DIGEST = bytes(hashlib.sha256().digest_size)

_MAGIC = b"RML1"
_HEAD = struct.Struct("<4sIQII32s32s")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CRC.size

MAX_GROUP_BYTES = _HEAD_BYTES + MAX_BODY_BYTES + len(NO_DIGEST)


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
        end: The place after the group.
        content: All its bytes.
    """

    entries: int
    encoder: EncoderOfGroup
    body: memoryview
    end: Place
    content: memoryview


def encode_group(before: Place, encoder: EncoderOfGroup, entries: Sequence[bytes]) -> tuple[bytes, Place]:
    """Encode a group.

    Args:
        before: The place of the group.
        encoder: The encoder of its vectors.
        entries: The encoded entries.

    Returns:
        The group, and the place after it.
    """
    body = b"".join(entries)
    head = _HEAD.pack(
        _MAGIC,
        len(body),
        before.sequence + 1,
        len(entries),
        encoder.dim,
        encoder.sha256,
        before.digest or NO_DIGEST,
    )
    head += _CRC.pack(zlib.crc32(head))
    digest = _digest(head, body)
    return head + body + digest, Place(before.sequence + len(entries), digest)


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
    magic, body_bytes, first, entries, dim, encoder, digest_before = _HEAD.unpack_from(content)
    (crc,) = _CRC.unpack_from(content, _HEAD.size)
    if crc != zlib.crc32(content[: _HEAD.size]) or magic != _MAGIC or body_bytes > MAX_BODY_BYTES or entries == 0:
        raise ValueError("expected the head of a group of entries, found other bytes")
    digest_at = _HEAD_BYTES + body_bytes
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
    return Group(entries, EncoderOfGroup(encoder, dim), body, Place(before.sequence + entries, digest), content[:end])


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.digest()
