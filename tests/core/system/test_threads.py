"""The thread budget respects the quota of a container, divides the cores, and limits libraries before they load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recollect.core.system.threads import usable_cores
from tests.processes import serving

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"
IN_V2, IN_V1 = {"proc/self/cgroup": "0::/a.slice/b.scope\n"}, {"proc/self/cgroup": "4:cpu,cpuacct:/a/b\n0::/a/b\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (IN_V2 | {f"{V2}/cpu.max": "max 100000\n"}, 8),
        (IN_V2 | {f"{V2}/cpu.max": "200000 100000\n"}, 2),
        (IN_V2 | {f"{V2}/cpu.max": "350000 100000\n"}, 3),
        (IN_V2 | {f"{V2}/cpu.max": "50000 100000\n"}, 1),
        (IN_V2 | {f"{V2}/cpu.max": "6400000 100000\n"}, 8),
        (IN_V2 | {f"{V2}/cpu.max": "nonsense\n"}, 8),
        (IN_V2 | {f"{V2}/a.slice/cpu.max": "200000 100000\n", f"{V2}/a.slice/b.scope/cpu.max": "max 100000\n"}, 2),
        (IN_V2 | {f"{V2}/a.slice/cpu.max": "400000 100000\n", f"{V2}/a.slice/b.scope/cpu.max": "300000 100000\n"}, 3),
        (IN_V2 | {f"{V2}/beside.slice/cpu.max": "200000 100000\n"}, 8),
        (IN_V1 | {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 8),
        (IN_V1 | {f"{V1}/cpu.cfs_quota_us": "400000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 4),
        (IN_V1 | {f"{V1}/a/cpu.cfs_quota_us": "150000\n", f"{V1}/a/cpu.cfs_period_us": "50000\n"}, 3),
    ],
)
def test_number_of_usable_cores_respects_the_cpu_quotas_of_all_control_groups_of_the_process(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert usable_cores(tmp_path) == cores


def test_libraries_use_one_thread_unless_the_user_sets_another_number(store: Path) -> None:
    with serving(store, OMP_NUM_THREADS="3") as server:
        event = server.wait_for("thread_budget")
        assert (event["workers"], event["threads"], event["OMP_NUM_THREADS"]) == (1, 1, "3")
        assert (event["OPENBLAS_NUM_THREADS"], event["TOKENIZERS_PARALLELISM"]) == ("1", "false")
        threads = Path(f"/proc/{server.process.pid}/task").iterdir()
        assert len(list(threads)) <= 16  # event loop, batcher and version check, but no thread pool of a library
