"""Start Python programs fast: fork them from a server process that has imported the packages already.

A new interpreter needs seconds of CPU time to import torch and transformers, and tests start hundreds of programs. A
forked program is a separate process: it has its own signals, environment, working folder, input and output. Use
`subprocess` for a program that must start with nothing imported.

All processes of a test run share one server, `tests.fork_server`. The first process that needs it starts it.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
ADDRESS = Path(tempfile.gettempdir()) / f"recollect-tests-{RUN}.socket"


class Popen(subprocess.Popen[Any]):
    """Has the interface of `subprocess.Popen`. Commands: `[python, "-c", CODE, ...]`, `[python, "-m", MODULE, ...]`."""

    def _execute_child(self, *given: Any) -> None:
        command, _, _, _, _, cwd, env, _, _, _, *pipes = given
        (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite), session = pipes[:6], pipes[11]
        ends = [end if end >= 0 else number for number, end in enumerate((p2cread, c2pwrite, errwrite))]
        request = {"arguments": command[1:], "cwd": os.fspath(cwd or os.getcwd()), "session": session}
        self._server = _connect()
        socket.send_fds(self._server, [json.dumps(request | {"env": dict(env or os.environ)}).encode()], ends)
        self.pid, self._child_created = int(self._server.recv(99)), True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        ended, _, _ = select.select([self._server], [], [], 0 if flags & os.WNOHANG else None)
        if not ended:
            return 0, 0
        with self._server:
            return self.pid, int(self._server.recv(99))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            with self._waitpid_lock:  # type: ignore[attr-defined]
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command of `Popen` to its end. The options are those of `subprocess.run`."""
    given, timeout, check = (options.pop(name, None) for name in ("input", "timeout", "check"))
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, stdin=None if given is None else subprocess.PIPE, **options) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def run_code(code: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python code in the root of the repository."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return run(command, cwd=REPOSITORY, capture_output=True, text=True, check=check)


def _connect() -> socket.socket:
    _start_server()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(ADDRESS))
    return connection


@functools.cache
def _start_server() -> socket.socket:
    """Start the server, unless another process has started it. It ends when all these connections are closed."""
    user = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ADDRESS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if user.connect_ex(str(ADDRESS)):
            ADDRESS.unlink(missing_ok=True)
            # Not `-m`: a program that spawns processes would let each of them import the main module.
            start = "import sys; sys.path[0] = sys.argv[1]; from tests.fork_server import serve; serve(sys.argv[2])"
            command = [sys.executable, "-c", start, str(REPOSITORY), str(ADDRESS)]
            server = os.posix_spawn(command[0], command, os.environ)
            while user.connect_ex(str(ADDRESS)):
                assert os.waitpid(server, os.WNOHANG) == (0, 0), "the server ended when it started; see its traceback"
                time.sleep(0.02)
        user.send(b"user")
    atexit.register(user.close)
    return user
