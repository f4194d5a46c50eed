"""The watcher by itself, over workers that do next to nothing: whom it buries, starts again, stops and kills."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, Server

PROGRAM = """
import atexit, os, select, signal, sys, time
from service.process import supervisor
from service.errors import ServiceError
from service.telemetry.logs import configure_logs
configure_logs()
count, stop_seconds, stopping = 2, 3600, lambda: None
{}
run = supervisor.Workers(count, work, stop_seconds, stopping, buried=lambda process: None).run
sys.exit(run(lambda: supervisor.log.info("serving", url="")))
"""

IDLE = """
def work(number, ready):
    ready()
    signal.pause()
"""


@contextlib.contextmanager
def watching(program: str, tmp_path: Path) -> Iterator[Server]:
    """A watcher all of whose workers have answered."""
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(program)], stderr=stderr)
    try:
        yield Server(process, log)
    finally:
        process.kill()
        process.wait()


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """A watcher that ends by itself."""
    command = [sys.executable, "-c", PROGRAM.format(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def stopped(server: Server) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(timeout=PATIENCE_SECONDS)


def test_an_inherited_process_is_passed_over(tmp_path: Path) -> None:
    stray = "if not os.fork():\n    os._exit(7)\n"
    with watching(stray + IDLE, tmp_path) as server:
        assert server.events("worker_died") == []
        assert stopped(server) == 0


def test_a_second_signal_kills_who_has_not_stopped(tmp_path: Path) -> None:
    deaf = """
def work(number, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    while True:
        signal.pause()
def stopping():
    supervisor.log.info("stopping")
"""
    with watching(deaf, tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping")
        assert stopped(server) == 1
        assert {event["worker"] for event in server.events("worker_killed")} == {0, 1}


def test_a_first_worker_that_is_killed_at_its_start_is_told_of() -> None:
    failed = ended("def work(number, ready):\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert failed.returncode == 1
    (event,) = map(json.loads, failed.stderr.splitlines())
    assert (event["event"], event["worker"], event["status"]) == ("worker_died", 0, -signal.SIGKILL)


@pytest.mark.parametrize("status", [1, 2])
def test_a_first_worker_that_says_what_is_wrong_is_the_only_one_to_speak(status: int) -> None:
    wrong = "def work(number, ready):\n    error = ServiceError('no')\n    error.exit_status = {}\n    raise error\n"
    failed = ended(wrong.format(status))
    assert (failed.returncode, failed.stderr) == (status, "recollect serve: no\n")


def test_a_signal_between_a_fork_and_the_new_process_s_own_handlers_is_not_lost() -> None:
    early = """
fork = os.fork
def fork_and_be_told():
    process = fork()
    if not process:
        signal.set_wakeup_fd(-1)
        os.kill(os.getpid(), signal.SIGTERM)
    return process
os.fork = fork_and_be_told
def work(number, ready):
    print("works all the same")
    sys.exit(3)
"""
    done = ended(early)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stop_waits_for_news_even_if_a_worker_was_due_to_be_started(tmp_path: Path) -> None:
    program = """
def work(number, ready):
    ready()
    if number:
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.5) or sys.exit(0))
    signal.pause()
looks, look = [], select.select
def counted(*arguments):
    looks.append(arguments)
    return look(*arguments)
def stopping():
    select.select = counted
supervisor._SHORTEST_PAUSE_SECONDS = 0.3
atexit.register(lambda: supervisor.log.info("stopped", looks=len(looks)))
"""
    with watching(program, tmp_path) as server:
        server.wait_for("worker_died")
        assert stopped(server) == 0
        assert server.events("stopped")[0]["looks"] < 10


MORTAL = """
def work(number, ready):
    ready()
    if number:
        sys.exit(3)
    signal.pause()
"""


def pauses(program: str, tmp_path: Path, deaths: int) -> list[float]:
    with watching(program, tmp_path) as server:
        server.wait_for("worker_died", deaths)
        return [event["again_in_seconds"] for event in server.events("worker_died")[:deaths]]


def test_a_worker_that_dies_as_soon_as_it_answers_is_started_ever_more_rarely(tmp_path: Path) -> None:
    assert pauses(MORTAL, tmp_path, 4) == [0.1, 0.2, 0.4, 0.8]


def test_a_worker_that_answered_for_a_while_is_started_again_soon(tmp_path: Path) -> None:
    assert pauses("workers._SOUND_SECONDS = 0.0\n" + MORTAL, tmp_path, 3) == [0.1, 0.1, 0.1]


def test_not_all_are_ready_as_long_as_one_has_never_answered() -> None:
    never = """
def work(number, ready):
    if number == 0:
        ready()
    else:
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
"""
    done = ended(never)
    assert (done.returncode, done.stderr) == (0, "")
