"""CPU time and memory of a process tree, and the machine's CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from loadtests.processes import cpu_model, cpu_seconds, memory, process_tree, steal_seconds

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "held = bytearray(50 << 20); sum(range(3_000_000)); input()"])
print("started", flush=True)
child.wait()
"""


def test_memory_and_cpu_time_include_child_processes() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin
    assert parent.stdout
    with parent:
        parent.stdout.readline()
        deadline = time.monotonic() + 30
        while len(process_tree(parent.pid)) < 2 or memory(parent.pid).anonymous_mb < 50 or cpu_seconds(parent.pid) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        alone = memory(os.getpid())
        assert alone.rss_mb >= alone.anonymous_mb > 0
        parent.stdin.close()


def test_cpu_time_of_an_ended_process_is_zero() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert cpu_seconds(process.pid) == 0


def test_model_and_steal_time_of_the_cpu_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: Some CPU @ 2.5: GHz\nflags\t\t: fpu avx2 avx512_vnni\n\n")
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {os.sysconf('SC_CLK_TCK') * 3} 9 10\ncpu0 1 2 3\n")
    assert cpu_model(tmp_path) == ("Some CPU @ 2.5: GHz", ["avx2", "avx512_vnni"])
    assert steal_seconds(tmp_path) == 3
    assert steal_seconds() >= 0
