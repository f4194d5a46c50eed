"""The lease of a compaction: one process at a time compacts the live memory of a store.

The lease is a file of the store, so that it also works at a URL. Its holder renews it, and the lease of a process that
was killed ends soon. If clocks differ by more than this time, two processes can compact at once: both versions are
complete, and only the first one is activated.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator

from recollect.service.errors import CompactionRunningError, StoreError
from recollect.service.storage.control_files import ControlFiles

_COMPACTION = "COMPACTION"
# A lease ends if it was not renewed for this time.
_LEASE_SECONDS, _RENEW_SECONDS = 60.0, 15.0


def compaction_holder(files: ControlFiles) -> str | None:
    """The process that compacts the live memory of a store; None if no process does.

    Raises:
        StoreError, OSError: If the store cannot be read.
    """
    return _parse(files.read(_COMPACTION))


@contextlib.contextmanager
def compaction_lease(files: ControlFiles) -> Iterator[None]:
    """Hold the lease of a store.

    Raises:
        CompactionRunningError: If another process holds it.
        StoreError, OSError: If the store cannot be read or written.
    """
    # The processes of two containers can have the same name and number.
    own = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def take(content: bytes | None) -> bytes:
        holder = _parse(content)
        if holder not in (None, own):
            raise CompactionRunningError(
                f"{files.name}: expected no other compaction, found that {holder} compacts this store; wait until it "
                f"has finished. If that process was killed, try again in {_LEASE_SECONDS:.0f} seconds"
            )
        return json.dumps({"holder": own, "renewed": time.time()}).encode()

    def write() -> None:
        with files.exclusive():
            files.update(_COMPACTION, take)

    def release(content: bytes | None) -> bytes:
        return b"" if _parse(content) == own else content or b""

    def renew() -> None:
        while not ended.wait(_RENEW_SECONDS):
            with contextlib.suppress(StoreError, OSError):  # the next renewal may succeed
                write()

    write()
    ended = threading.Event()
    thread = threading.Thread(target=renew, name="renew-compaction", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(StoreError, OSError), files.exclusive():  # otherwise the lease ends by itself
            files.update(_COMPACTION, release)


def _parse(content: bytes | None) -> str | None:
    """The holder of a lease that has not ended."""
    try:
        fields = json.loads(content or b"{}")
        holder, renewed = str(fields["holder"]), float(fields["renewed"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return holder if abs(time.time() - renewed) < _LEASE_SECONDS else None
