"""Memory to spare before a second version is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.errors import HeadroomError
from service.store.store import Store
from service.versions import memory_check
from service.versions.memory_check import free_bytes, private_bytes, require_headroom

MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\n"


def test_free_is_what_machine_and_group_both_admit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert free_bytes(meminfo, tmp_path) == 1000 << 10
    for name, content in {
        "memory.max": "700000",
        "memory.current": "500000",
        "memory.stat": "anon 9\nfile 400000\n",
    }.items():
        (tmp_path / name).write_text(content)
    assert free_bytes(meminfo, tmp_path) == 600_000  # its file pages go when they must
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(meminfo, tmp_path) == 1000 << 10


def test_this_machine_tells_what_is_free() -> None:
    assert free_bytes() > 1 << 20


def test_a_version_that_would_not_fit_is_refused_and_says_by_how_much(
    road: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Store(road.store).manifest(road.version)
    require_headroom(manifest)
    monkeypatch.setattr(memory_check, "free_bytes", lambda: private_bytes(manifest) - 1)
    with pytest.raises(HeadroomError, match=r"expected \d+ MB of free memory to open it, found \d+ MB"):
        require_headroom(manifest)
