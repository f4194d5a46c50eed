"""The memory check runs before a version is opened, and compares the version with the free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.core.errors import InsufficientMemoryError
from recollect.core.system.ram import free_bytes
from recollect.service.versions import opening
from recollect.service.versions.opening import private_bytes, require_memory
from recollect.store.store import Store

MACHINE = {"proc/meminfo": "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\n"}  # 1,024,000 bytes
STAT = "anon 200000\nfile 350000\nshmem 50000\ninactive_anon 250000\nactive_file 100000\ninactive_file 200000\n"
V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"
GROUP_V2 = {f"{V2}/memory.max": "700000", f"{V2}/memory.high": "max", f"{V2}/memory.current": "500000"}
ROOT = {"proc/self/cgroup": "0::/\n"}
NESTED_V2 = {
    "proc/self/cgroup": "0::/a.slice/b.scope\n",
    f"{V2}/a.slice/memory.max": "700000",
    f"{V2}/a.slice/memory.high": "max",
    f"{V2}/a.slice/memory.current": "650000",
    f"{V2}/a.slice/memory.stat": STAT,
    f"{V2}/a.slice/b.scope/memory.max": "max",
    f"{V2}/a.slice/b.scope/memory.high": "max",
    f"{V2}/a.slice/b.scope/memory.current": "500000",
}
GROUP_V1 = {
    "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/x\n0::/x\n",
    f"{V1}/memory.limit_in_bytes": "9223372036854771712",
    f"{V1}/memory.usage_in_bytes": "900000",
    f"{V1}/x/memory.limit_in_bytes": "700000",
    f"{V1}/x/memory.usage_in_bytes": "500000",
    f"{V1}/x/memory.stat": "cache 1\ntotal_cache 350000\ntotal_active_file 100000\ntotal_inactive_file 200000\n",
}


def folder_with(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


# Files of a machine, and the bytes that it has free.
CASES: dict[str, tuple[dict[str, str], int]] = {
    "no control group": ({}, 1_024_000),
    "group without limits": (ROOT, 1_024_000),
    "limit": (ROOT | GROUP_V2, 200_000),
    "file pages are free, tmpfs pages are not": (
        {"proc/self/cgroup": "0::/\n", f"{V2}/memory.stat": STAT} | GROUP_V2,
        500_000,
    ),
    "memory.high is below memory.max": (ROOT | GROUP_V2 | {f"{V2}/memory.high": "600000"}, 100_000),
    "no limit": (ROOT | GROUP_V2 | {f"{V2}/memory.max": "max"}, 1_024_000),
    "usage over the limit": (ROOT | GROUP_V2 | {f"{V2}/memory.current": "800000"}, 0),
    "limit above the machine's memory": (ROOT | GROUP_V2 | {f"{V2}/memory.max": str(10**12)}, 1_024_000),
    "path that the container does not see": ({"proc/self/cgroup": "0::/docker/not-visible-here\n"} | GROUP_V2, 200_000),
    "path outside of the container": ({"proc/self/cgroup": "0::/../beside\n"} | GROUP_V2, 200_000),
    "limit of the group above": (NESTED_V2, 350_000),
    "limits of both groups": (NESTED_V2 | {f"{V2}/a.slice/b.scope/memory.max": "600000"}, 100_000),
    "version 1": (GROUP_V1, 500_000),
}


@pytest.mark.parametrize("name", CASES)
def test_free_memory_is_the_smallest_amount_that_machine_and_control_groups_leave(tmp_path: Path, name: str) -> None:
    files, free = CASES[name]
    assert free_bytes(folder_with(tmp_path, MACHINE | files)) == free


def test_error_for_a_version_that_does_not_fit_names_needed_and_free_memory(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Store(built.store).manifest(built.version)
    require_memory(manifest)
    monkeypatch.setattr(opening, "free_bytes", lambda: private_bytes(manifest) - 1)
    with pytest.raises(InsufficientMemoryError, match=r"expected \d+ MB of free memory to open it, found \d+ MB"):
        require_memory(manifest)
