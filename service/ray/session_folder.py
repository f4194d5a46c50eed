"""The folder for sockets and logs of a Ray on this machine.

A process locks its folder and removes it at the end. If the process is killed, the system releases the lock, and the
next command with Ray removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from recollect.service.storage.bundle_folder import try_lock

# In /tmp, because the path of a socket may have at most 107 bytes.
_PARENT, _PREFIX = Path("/tmp"), "recollect-ray-session-"
# The process of a younger folder may not have locked it yet.
_LEAST_AGE_SECONDS = 60.0


@contextlib.contextmanager
def session_folder() -> Iterator[str]:
    """Remove the folders of killed processes of this user, then create a folder for the time of a block.

    Raises:
        OSError: If the folder cannot be created.
    """
    for old in _PARENT.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, or of another user
            _remove_unlocked(old)
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_PARENT, ignore_cleanup_errors=True) as folder,
        _opened(Path(folder)) as descriptor,
    ):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder


def _remove_unlocked(folder: Path) -> None:
    """Remove an old folder of this user if no process holds its lock."""
    with _opened(folder) as descriptor:
        status = os.fstat(descriptor)
        is_old = time.time() - status.st_mtime > _LEAST_AGE_SECONDS
        if is_old and status.st_uid == os.geteuid() and try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
