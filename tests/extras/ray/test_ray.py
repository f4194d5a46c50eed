"""`recollect predict --ray`: real processes of a cluster of Ray, that die, and bad input."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.core.errors import ClusterError, SettingsError, WorkerError
from recollect.extras.ray.tasks import check_address, open_tasks
from tests.bulk.test_bulk import MANY, ROWS, SMALL_BLOCKS, fails, finished_rows, run, running, start, write_jsonl
from tests.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

# Ray reads this variable once, at its import: the clusters of all tests that run in this process are at 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Not in a folder of pytest, because the path of a socket must be short.
FOLDER = Path(f"/tmp/ray-{os.getpid()}")


@pytest.fixture(autouse=True)
def store(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_STORE", str(built.store))
    monkeypatch.setenv("RECOLLECT_WORKERS", "1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", MANY)


def answers_of_one_process(source: Path) -> bytes:
    target = source.with_name("expected" + "".join(source.suffixes))
    assert start("--input", source, "--output", target, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    return target.read_bytes()


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

    Its processes have the niceness of other programs.
    """
    variables = {"USAGE_STATS_ENABLED": "0", "AUTH_MODE": "disabled"}
    variables |= {"worker_niceness": "0"} | QUICK_CHECKS
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as free:
        for name, value in variables.items():
            patch.setenv(f"RAY_{name}", value)
        port = free.getsockname()[1]
        free.close()
        flags = ["--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={FOLDER}"]
        try:
            with ray_process(*flags):
                yield f"127.0.0.1:{port}"
        finally:
            shutil.rmtree(FOLDER, ignore_errors=True)


def test_a_cluster_answers_parquet_and_continues_a_task_whose_command_was_killed(cluster: str, tmp_path: Path) -> None:
    pytest.importorskip("recollect.extras.parquet", reason="Parquet files are another extra")
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.Table.from_pylist(MANY), source)
    flags = ("--input", source, "--ray", cluster, "--workers", 2)
    process = running(*flags, target=target)
    process.kill()
    process.communicate()
    assert not target.exists()
    assert finished_rows(target) > 0
    assert start(*flags, "--output", target, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    assert target.read_bytes() == answers_of_one_process(source)


def test_processes_of_ray_write_the_bytes_of_one_process_also_if_one_of_them_is_killed(
    cluster: str, source: Path
) -> None:
    target = source.with_name("out.jsonl")
    process = running("--input", source, "--ray", cluster, target=target)
    while not (busy := busy_processes()):  # between two calls, a process has another name
        assert process.poll() is None
    busy[0].kill()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (0, b""), errors
    assert target.read_bytes() == answers_of_one_process(source)


def busy_processes() -> list[psutil.Process]:
    """The processes of the cluster that run a call."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended meanwhile
            if each.cmdline()[:1] == ["ray::_call"] and any(str(FOLDER) in part for part in each.parent().cmdline()):
                found.append(each)
    return found


def test_a_version_that_does_not_open_and_a_bad_row_are_one_message(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", [*ROWS, {"text": ""}]), tmp_path / "out.jsonl"
    flags = ("--input", source, "--output", target, "--ray", cluster)
    assert "no probabilities" in fails(capsys, *flags, "--min-probability", 0.5)
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"]
    assert "in.jsonl: line 36: the query is empty" in fails(capsys, *flags)
    assert run(*flags, "--bad-rows", "mark") == 0
    assert len(target.read_bytes().splitlines()) == 36


def test_a_call_that_ends_its_process_is_repeated_and_then_named(cluster: str, tmp_path: Path) -> None:
    with open_tasks(cluster, 2) as tasks:
        dying, living = tasks.submit(os.abort), tasks.submit(os.path.join, "a", "b")
        assert tasks.result(living) == "a/b"
        with pytest.raises(WorkerError, match=r"ended 3 times with the same task; is there enough memory\?"):
            tasks.result(dying)
        with pytest.raises(WorkerError, match="a task of Ray failed: .*ZeroDivisionError"):
            tasks.result(tasks.submit(divmod, 1, 0))


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
