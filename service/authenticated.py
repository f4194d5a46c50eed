"""Authenticated content: detects content that was changed, moved or written by a process without the shared secret.

Redis stores content for the replicas, but its users and its operators are not trusted. Each content is stored behind a
message authentication code (HMAC-SHA256, RFC 2104) of its name and itself, under a secret that Redis does not hold.

    sealed content = code (32 bytes) + content
    code = HMAC-SHA256(secret, length of the name (8 bytes, big-endian) + name + content)
"""

from __future__ import annotations

import hashlib
import hmac

_CODE_BYTES = hashlib.sha256().digest_size


class Authenticator:
    """Seals content and opens sealed content.

    The name is part of the code, so content under another name is refused. An old content of the same name is accepted:
    content that can be outdated needs its own time or number.

    Args:
        secret: The secret that all replicas share.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def seal(self, name: str, content: bytes) -> bytes:
        """The content with its code.

        Args:
            name: Name under which the content is stored, such as the whole Redis key.
            content: Any bytes.
        """
        return self._code(name, content) + content

    def open(self, name: str, sealed: bytes) -> bytes | None:
        """The content; None if it was not sealed under this name with this secret."""
        code, content = sealed[:_CODE_BYTES], sealed[_CODE_BYTES:]
        return content if hmac.compare_digest(code, self._code(name, content)) else None

    def _code(self, name: str, content: bytes) -> bytes:
        encoded = name.encode()
        return hmac.digest(self._secret, len(encoded).to_bytes(8, "big") + encoded + content, "sha256")
