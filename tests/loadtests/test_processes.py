"""CPU time and memory of a process tree, and the machine's CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from loadtests.processes import cpu_seconds, memory, process_tree

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
