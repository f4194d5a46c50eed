"""The server of `tests.forked`: it imports Recollect and the libraries that Recollect imports late, and then forks."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from typing import Any

import recollect
from recollect.core import kernels

_LATER = (
    "torch.onnx._internal.exporter._core",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
    "uvicorn.protocols.http.httptools_impl",
)


def serve(address: str) -> None:
    """Fork a process for each request, until the last of the connections that send the word `user` is closed.

    A request has three file descriptors: input, output and errors. It is answered with the number of the process, and
    later with the status of its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests
    _import_packages()
    selector, users, children = selectors.DefaultSelector(), set[socket.socket](), dict[int, socket.socket]()
    wake, woken = socket.socketpair()
    for each in (wake, woken):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    selector.register(woken, selectors.EVENT_READ)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            ready: Any = key.fileobj
            if ready is woken:
                ready.recv(4_096)
                _report_ends(children)
            elif ready is listener:
                connection, _ = listener.accept()
                request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                if request == b"user":
                    users.add(connection)
                    selector.register(connection, selectors.EVENT_READ)
                elif not request:  # the client has gone
                    connection.close()
                elif (child := os.fork()) == 0:
                    for other in (listener, selector, wake, woken, connection, *users, *children.values()):
                        other.close()
                    _run(json.loads(request), descriptors)
                else:
                    children[child] = connection
                    with contextlib.suppress(BrokenPipeError):
                        connection.send(str(child).encode())
                    for descriptor in descriptors:
                        os.close(descriptor)
            else:  # a user has gone
                selector.unregister(ready)
                users.remove(ready)
                ready.close()
                if not users:
                    for path in (address, f"{address.removesuffix('.socket')}.lock"):
                        os.unlink(path)
                    return


def _import_packages() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it when it is imported; requests would take 46 s
    gc.disable()
    modules = [module.name for module in pkgutil.walk_packages(recollect.__path__, "recollect.")]
    for name in (*_LATER, *modules):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of a package or a folder that is missing: a program reports it
                importlib.import_module(name)
    kernels.compile_all()  # to load the loops takes half a second
    tempfile.tempdir = None  # torch has looked it up, but each forked program has its own TMPDIR
    gc.freeze()  # so a collection in a forked process copies no pages
    gc.enable()


def _report_ends(children: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):  # no child is left
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            with children.pop(ended[0]) as connection, contextlib.suppress(BrokenPipeError):
                connection.send(str(ended[1]).encode())


def _run(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run a program as Python would, and end this process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        if request["session"]:
            os.setsid()
        kind, program, *rest = request["arguments"]
        sys.argv = ["-c" if kind == "-c" else program, *rest]
        if kind == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status & 255)
