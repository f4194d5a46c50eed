"""The supervisor with minimal workers: it starts, restarts, stops and kills worker processes."""

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
import atexit, os, select, signal, sys, threading, time
from recollect.service.process import supervisor
from recollect.service.errors import ServiceError
from recollect.service.telemetry.logs import configure_logs
configure_logs()
count, stop_seconds, on_stop = 2, 3600, lambda: None
{}
run = supervisor.Supervisor(count, work, stop_seconds, on_stop, on_exit=lambda process: None).run
sys.exit(run(lambda: supervisor.log.info("serving", url="")))
"""

IDLE = """
def work(number, heartbeat):
    heartbeat()
    signal.pause()
"""


@contextlib.contextmanager
def supervising(program: str, tmp_path: Path) -> Iterator[Server]:
    """A running supervisor whose workers have all been ready."""
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(program)], stderr=stderr)
    try:
        yield Server(process, log)
    finally:
        process.kill()
        process.wait()


def run_to_end(program: str) -> subprocess.CompletedProcess[str]:
    """Run a supervisor until it ends by itself."""
    command = [sys.executable, "-c", PROGRAM.format(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def stop(server: Server) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(timeout=PATIENCE_SECONDS)


def test_supervisor_ignores_the_exit_of_a_process_that_is_not_its_worker(tmp_path: Path) -> None:
    inherited = "if not os.fork():\n    os._exit(7)\n"
    with supervising(inherited + IDLE, tmp_path) as server:
        assert server.events("worker_died") == []
        assert stop(server) == 0


def test_second_signal_kills_workers_that_ignore_the_first_signal(tmp_path: Path) -> None:
    program = """
def work(number, heartbeat):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    heartbeat()
    while True:
        signal.pause()
def on_stop():
    supervisor.log.info("stopping")
"""
    with supervising(program, tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping")
        assert stop(server) == 1
        assert {event["worker"] for event in server.events("worker_killed")} == {0, 1}


def test_log_reports_that_the_first_worker_was_killed_at_its_start() -> None:
    failed = run_to_end("def work(number, heartbeat):\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert failed.returncode == 1
    (event,) = map(json.loads, failed.stderr.splitlines())
    assert (event["event"], event["worker"], event["status"]) == ("worker_died", 0, -signal.SIGKILL)


@pytest.mark.parametrize("status", [1, 2])
def test_error_of_the_first_worker_is_printed_once(status: int) -> None:
    program = (
        "def work(number, heartbeat):\n    error = ServiceError('no')\n    error.exit_status = {}\n    raise error\n"
    )
    failed = run_to_end(program.format(status))
    assert (failed.returncode, failed.stderr) == (status, "recollect serve: no\n")


def test_signal_that_arrives_before_a_worker_has_its_handlers_is_not_lost() -> None:
    program = """
fork = os.fork
def fork_and_send_signal():
    process = fork()
    if not process:
        signal.set_wakeup_fd(-1)
        os.kill(os.getpid(), signal.SIGTERM)
    return process
os.fork = fork_and_send_signal
def work(number, heartbeat):
    print("the worker ran")
    sys.exit(3)
"""
    done = run_to_end(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stopping_supervisor_does_not_poll_if_a_restart_was_due(tmp_path: Path) -> None:
    program = """
def work(number, heartbeat):
    heartbeat()
    if number:
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.5) or sys.exit(0))
    signal.pause()
waits, wait = [], select.select
def counted(*arguments):
    waits.append(arguments)
    return wait(*arguments)
def on_stop():
    select.select = counted
supervisor._MIN_RESTART_SECONDS = 0.3
atexit.register(lambda: supervisor.log.info("stopped", waits=len(waits)))
"""
    with supervising(program, tmp_path) as server:
        server.wait_for("worker_died")
        assert stop(server) == 0
        assert server.events("stopped")[0]["waits"] < 10


DIES_AT_ONCE = """
def work(number, heartbeat):
    heartbeat()
    if number:
        sys.exit(3)
    signal.pause()
"""


def restart_delays(program: str, tmp_path: Path, deaths: int) -> list[float]:
    with supervising(program, tmp_path) as server:
        server.wait_for("worker_died", deaths)
        return [event["again_in_seconds"] for event in server.events("worker_died")[:deaths]]


def test_restart_delay_doubles_if_a_worker_dies_directly_after_its_start(tmp_path: Path) -> None:
    assert restart_delays(DIES_AT_ONCE, tmp_path, 4) == [0.1, 0.2, 0.4, 0.8]


def test_restart_delay_stays_short_if_a_worker_was_ready_for_a_long_time(tmp_path: Path) -> None:
    assert restart_delays("supervisor._STABLE_SECONDS = 0.0\n" + DIES_AT_ONCE, tmp_path, 3) == [0.1, 0.1, 0.1]


def test_service_is_not_ready_until_every_worker_has_been_ready() -> None:
    program = """
def work(number, heartbeat):
    if number == 0:
        heartbeat()
    else:
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
"""
    done = run_to_end(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_worker_without_heartbeats_is_killed_and_restarted(tmp_path: Path) -> None:
    program = """
supervisor.HANG_SECONDS = 1.0
def work(number, heartbeat):
    while True:
        heartbeat()
        if number:
            signal.pause()
        time.sleep(0.1)
"""
    with supervising(program, tmp_path) as server:
        died = server.wait_for("worker_died", 2)
        assert {event["worker"] for event in server.events("worker_hung")} == {1}
        assert (died["worker"], died["status"]) == (1, -signal.SIGKILL)
        assert stop(server) == 0


def test_worker_that_needs_a_long_time_to_start_is_not_killed(tmp_path: Path) -> None:
    program = """
supervisor.HANG_SECONDS = 1.0
def work(number, heartbeat):
    if number:
        time.sleep(2)
    while True:
        heartbeat()
        time.sleep(0.05)
"""
    with supervising(program, tmp_path) as server:
        assert server.events("worker_hung") == []


def test_no_worker_is_killed_when_a_suspended_service_resumes(tmp_path: Path) -> None:
    program = """
supervisor.HANG_SECONDS = 2.0
def work(number, heartbeat):
    while True:
        heartbeat()
        time.sleep(0.1)
clock, offset = time.monotonic, [0.0]
time.monotonic = lambda: clock() + offset[0]
wait, waits = select.select, []
def suspended_once(*arguments):
    found = wait(*arguments)
    waits.append(None)
    if len(waits) == 20:
        offset[0] = 3600.0
        found = [], [], []
    if len(waits) == 60:
        supervisor.log.info("resumed")
    return found
select.select = suspended_once
"""
    with supervising(program, tmp_path) as server:
        server.wait_for("resumed")
        assert server.events("worker_hung") == []
        assert stop(server) == 0


def test_heartbeat_does_not_block_a_worker_when_the_supervisor_does_not_read(tmp_path: Path) -> None:
    program = """
def work(number, heartbeat):
    heartbeat()
    if number:
        os.kill(os.getppid(), signal.SIGSTOP)
        for _ in range(200_000):  # more than a pipe holds
            heartbeat()
        os.kill(os.getppid(), signal.SIGCONT)
        supervisor.log.info("sent")
    signal.pause()
"""
    with supervising(program, tmp_path) as server:
        server.wait_for("sent")
        assert stop(server) == 0
