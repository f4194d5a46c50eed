"""Start Python programs fast: fork them from a server process that has imported the packages already.

A new interpreter needs seconds of CPU time to import torch and transformers, and tests start hundreds of programs. A
forked program is a separate process: it has its own signals, environment, working folder, input and output. Use
`subprocess` for a program that must start with nothing imported.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.preloaded"])


class Popen(subprocess.Popen[Any]):
    """Has the interface of `subprocess.Popen`. Commands: `[python, "-c", CODE, ...]`, `[python, "-m", MODULE, ...]`."""

    def _execute_child(self, *given: Any) -> None:
        command, _, _, _, _, cwd, env, _, _, _, *pipes = given
        (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite), session = pipes[:6], pipes[11]
        ends = [end if end >= 0 else number for number, end in enumerate((p2cread, c2pwrite, errwrite))]
        self._forked = CHILDREN.Process(
            target=_run,
            args=(command[1:], [_Descriptor(end) for end in ends], cwd, dict(env or os.environ), session),
            daemon=False,  # it may have children of its own
        )
        self._forked.start()
        self.pid, self._child_created = int(self._forked.pid or 0), True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        self._forked.join(0 if flags & os.WNOHANG else None)
        status = self._forked.exitcode
        return (0, 0) if status is None else (self.pid, status << 8 if status >= 0 else -status)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            with self._waitpid_lock:  # type: ignore[attr-defined]
                pid, status = self._try_wait(os.WNOHANG)
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


class _Descriptor:
    """A file descriptor for a forked process. The process receives a duplicate of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> int:
    return int(duplicate.detach())


def _run(
    arguments: list[str], descriptors: list[int], cwd: str | None, env: Mapping[str, str], new_session: bool
) -> None:
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind, program, *rest = arguments
    try:
        if kind == "-c":
            sys.argv = ["-c", *rest]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [program, *rest]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
