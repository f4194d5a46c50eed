"""`recollect predict --ray`: real actors of Ray, on this machine and in a cluster, actors that die, and bad input."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.service.errors import ClusterError, ServiceError, SettingsError, WorkerError
from recollect.service.ray.cluster import check_address, connected
from tests.service.http_helpers import PATIENCE_SECONDS
from tests.service.test_bulk import BLOCKED, ROWS, SMALL_BLOCKS, fails, input_changed, run, start, write_jsonl

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

# Ray reads this variable once, at its import: the clusters of all tests that run in this process are at 127.0.0.1.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
os.environ[_LOOPBACK] = "0"

# After the third block, the process prints what listens on which address, and kills the actor. Later, it prints the
# number of actors that have started since.
KILLING = f"""
{SMALL_BLOCKS}
import gc, os, signal, sys, psutil
from recollect.service.bulk import output
actors, started, write = [], [], output.FileOutput.write
def write_and_kill(self, content, rows):
    import ray
    from recollect.service.ray.pool import ActorPool
    write(self, content, rows)
    if rows == 4:
        start = ActorPool._start
        ActorPool._start = lambda self: started.append(start(self)) or started[-1]
        actors.extend(next(each for each in gc.get_objects() if isinstance(each, ActorPool))._actors)
    if rows == 12:
        listening = set()
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    listening.add(each.laddr.ip.removeprefix("::ffff:"))
        print(*listening, flush=True)
        os.kill(ray.get(actors[0].process.remote()), signal.SIGKILL)
    if rows == 35:
        print(len(started), os.environ.get("RAY_AUTH_MODE"), flush=True)
output.FileOutput.write = write_and_kill
"""
# After the third block, the process prints a line, and waits for a line.
WAITING = f"""
{SMALL_BLOCKS}
import sys
from recollect.service.bulk import output
write = output.FileOutput.write
def write_and_wait(self, content, rows):
    write(self, content, rows)
    if rows == 12:
        print("written", flush=True)
        sys.stdin.readline()
output.FileOutput.write = write_and_wait
"""
# The same as `KILLING`, but the process also kills the process of Ray that manages this machine.
LOSING = KILLING.replace(
    "        os.kill(ray",
    """
        next(each for each in psutil.Process().children() if each.name() == "raylet").kill()
        os.kill(ray""",
)


@pytest.fixture(autouse=True)
def store(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_STORE", str(built.store))
    monkeypatch.setenv("RECOLLECT_WORKERS", "1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", ROWS)


def answers_of_one_process(source: Path, *flags: object) -> bytes:
    target = source.with_name("expected" + "".join(source.suffixes))
    flags = ("--input", source, "--output", target, *flags)
    assert start(*flags, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    return target.read_bytes()


@pytest.mark.slow
def test_actors_on_this_machine_write_the_bytes_of_one_process_also_if_one_of_them_is_killed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(_LOOPBACK)  # the command sets it by itself
    target = source.with_name("out.jsonl")
    flags = ("--input", source, "--output", target, "--ray")
    process = start(*flags, prelude=KILLING, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert output.decode().splitlines() == ["127.0.0.1", "1 token"]  # no other address listens
    assert errors.decode().startswith("35 queries, ")
    assert target.read_bytes() == answers_of_one_process(source)
    assert not list(Path("/tmp").glob(f"recollect-ray-*/session_*_{process.pid}"))


# ---- A cluster ----

# With these settings, Ray notices a lost machine after three seconds.
QUICK_CHECKS = {"health_check_period_ms": "1000", "health_check_failure_threshold": "3"}


@contextlib.contextmanager
def ray_process(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs Ray's part of a machine: `ray start`."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--object-store-memory={128 << 20}"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert any("Ray runtime started" in line for line in process.stdout)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with two cores. Its ports are ports of 127.0.0.1.

    Its actors have the niceness of other programs.
    """
    variables = {"USAGE_STATS_ENABLED": "0", "AUTH_MODE": "disabled"}
    variables |= {"worker_niceness": "0"} | QUICK_CHECKS
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as free:
        for name, value in variables.items():
            patch.setenv(f"RAY_{name}", value)
        port = free.getsockname()[1]
        free.close()
        folder = Path(f"/tmp/ray-{os.getpid()}")  # not in a folder of pytest: the path of a socket must be short
        flags = ["--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}"]
        try:
            with ray_process(*flags):
                yield f"127.0.0.1:{port}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_task_continues_on_another_machine_if_one_is_lost(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    for name, value in QUICK_CHECKS.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    one_core = {"num_cpus": 1, "object_store_memory": 128 << 20, "include_dashboard": False}
    cluster, target = Cluster(initialize_head=True, head_node_args=one_core), tmp_path / "out.jsonl"
    try:
        other = cluster.add_node(num_cpus=1, object_store_memory=128 << 20)
        flags = ("--input", source, "--output", target, "--ray", cluster.address, "--workers", 2)
        process = start(*flags, prelude=WAITING, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        cluster.remove_node(other, allow_graceful=False)
        process.communicate(b"continue\n", timeout=PATIENCE_SECONDS)
        assert process.returncode == 0
    finally:
        cluster.shutdown()
    assert target.read_bytes() == answers_of_one_process(source)


@pytest.mark.slow
def test_a_cluster_answers_parquet_and_continues_a_task_whose_driver_was_killed(cluster: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), source)
    blocks = SMALL_BLOCKS.replace("reading", "parquet_input")
    flags = ("--input", source, "--output", target, "--ray", cluster, "--workers", 2)
    prelude = blocks + BLOCKED.replace(SMALL_BLOCKS, "").replace("print(*started", "print('written'")
    process = start(*flags, prelude=prelude, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.kill()
    process.communicate()
    assert not target.exists()
    assert input_changed(target)
    assert start(*flags, prelude=blocks).wait(PATIENCE_SECONDS) == 0
    alone = tmp_path / "alone.parquet"
    assert start("--input", source, "--output", alone, prelude=blocks).wait(PATIENCE_SECONDS) == 0
    assert target.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_a_bundle_that_does_not_open_and_a_bad_row_are_one_message(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", [*ROWS, {"text": ""}]), tmp_path / "out.jsonl"
    flags = ("--input", source, "--output", target, "--ray", cluster)
    assert "no probabilities" in fails(capsys, *flags, "--min-probability", 0.5)
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"]
    assert "in.jsonl: line 36: the query is empty" in fails(capsys, *flags)
    assert run(*flags, "--bad-rows", "mark") == 0
    assert len(target.read_bytes().splitlines()) == 36


@pytest.mark.slow
def test_a_block_is_tried_again_three_times_and_then_named(cluster: str, tmp_path: Path) -> None:
    with connected(cluster, 2):
        from recollect.service.ray.pool import ActorPool

        def submit(*words: str) -> list[Future[bytes]]:
            return [pool.submit(word.encode(), first) for first, word in enumerate(words)]

        with ActorPool("tests.service.ray_programs", b"", 2) as pool:
            found = submit("a", "b", f"die once {tmp_path}/died", "c", "die", "d")
            assert [each.result(PATIENCE_SECONDS) for each in [*found[:2], found[3], found[5]]] == [
                b"A",
                b"B",
                b"C",
                b"D",
            ]
            assert found[2].result(PATIENCE_SECONDS) == f"DIE ONCE {tmp_path}/DIED".upper().encode()
            with pytest.raises(
                WorkerError, match=r"ended 3 times with the block after row 4; is there enough memory\?"
            ):
                found[4].result(PATIENCE_SECONDS)
            with pytest.raises(WorkerError, match="an actor of Ray failed: .*MemoryError"):
                submit("fill")[0].result(PATIENCE_SECONDS)
            with pytest.raises(WorkerError, match="an actor of Ray failed"):  # the pool has ended
                submit("a")[0].result(PATIENCE_SECONDS)
        with pytest.raises(ServiceError, match="^no such bundle$"):
            ActorPool("tests.service.ray_programs", b"refuse", 2)
        with pytest.raises(WorkerError, match="ended 3 times before it answered a block; is there enough memory"):
            ActorPool("tests.service.ray_programs", b"die", 1)


@pytest.mark.slow
def test_an_unexpected_error_ends_the_pool_and_is_named(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("unexpected")

    with connected(cluster, 2):
        from recollect.service.ray.pool import ActorPool, ray

        with ActorPool("tests.service.ray_programs", b"", 1) as pool:
            monkeypatch.setattr(ray, "get", fail)
            with pytest.raises(WorkerError, match=r"failed: ValueError\('unexpected'\)"):
                pool.submit(b"a", 0).result(PATIENCE_SECONDS)
            monkeypatch.undo()


@pytest.mark.slow
def test_task_stops_if_ray_on_this_machine_is_lost(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK_CHECKS.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    target = source.with_name("out.jsonl")
    flags = ("--input", source, "--output", target, "--ray")
    process = start(*flags, prelude=LOSING, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert b"--ray: expected Ray to run on this machine, found that its processes have ended" in errors
    assert input_changed(target)


@pytest.mark.slow
def test_command_says_that_it_waits_for_a_core(
    cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(cluster, 2):
        from recollect.service.ray import pool

        monkeypatch.setattr(pool, "_CHECK_SECONDS", 0.1)
        with pool.ActorPool("tests.service.ray_programs", b"", 2) as first:
            assert first.submit(b"a", 0).result(PATIENCE_SECONDS) == b"A"
            assert first.submit(b"b", 0).result(PATIENCE_SECONDS) == b"B"
            waiting = threading.Thread(target=lambda: pool.ActorPool("tests.service.ray_programs", b"", 1).close())
            waiting.start()
            capsys.readouterr()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "waiting for a free core of the Ray cluster; see `ray status`\n" not in capsys.readouterr().err:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        waiting.join()


@pytest.mark.slow
def test_ctrl_c_ends_the_actors_and_keeps_the_finished_rows(source: Path) -> None:
    target = source.with_name("out.jsonl")
    prelude = BLOCKED.replace("print(*started", "print('written'")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    flags = ("--input", source, "--output", target, "--ray")
    process = start(*flags, prelude=prelude, start_new_session=True, **pipes)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (130, b"recollect predict: interrupted\n")
    assert input_changed(target)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _group(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _group(leader: int) -> list[str]:
    """The processes of a session that still run."""
    listed = subprocess.run(["ps", "-s", str(leader), "-o", "stat=,args="], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if not line.startswith("Z")]


# ---- Bad input ----


def test_ray_must_be_installed(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    flags = ("--input", source, "--output", source.with_name("out.jsonl"))
    assert (
        fails(capsys, *flags, "--ray")
        == "--ray: expected the package ray, found none; pip install 'recollect-xmc[ray]'"
    )
    assert [each.name for each in source.parent.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("address", ["nonsense", "host", "ray://host:10001", "host:0", "host:70000", ":6379", ""])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(
        SettingsError, match="--ray: expected HOST:PORT of a cluster, the word auto, or no value, found"
    ):
        check_address(address)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_without_a_cluster_is_refused_at_once(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        answering = subprocess.Popen(
            [sys.executable, "-c", f"import socket; c, _ = socket.socket(fileno=0).accept(); c.send({greeting!r})"],
            stdin=server,
        )
        with pytest.raises(ClusterError, match=f"--ray {address}: expected a Ray cluster, found"):
            check_address(address)
        answering.wait(PATIENCE_SECONDS)
    with pytest.raises(ClusterError, match="found: Connection refused; start one with `ray start --head`"):
        check_address(address)
