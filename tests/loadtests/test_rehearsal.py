"""The rehearsal: a deployment passes every stage without a lost request or a wrong answer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from loadtests.stages import STAGE_NAMES
from tests.loadtests.programs import last_line, run

MISSING = [name for name in ("redis-server", "nginx") if shutil.which(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.slow
def test_rehearsal_of_a_real_deployment_passes_every_stage(built: Any) -> None:
    flags = ["--store", built.store, "--seconds", 1, "--connections", 16, "--threads", 1]
    # A fixed rate that any machine can serve. The default rate depends on the speed that locust measures.
    result = run("-m", "loadtests.rehearsal", *flags, "--rate", 50)
    assert result.returncode == 0, result.stderr
    summary = last_line(result)
    assert not summary["failed"]
    assert not summary["faults"]
    assert tuple(stage["stage"] for stage in summary["stages"]) == STAGE_NAMES
    versions = {version for stage in summary["stages"] for version in stage["versions"]}
    assert versions == {f"{built.version}-copy0", f"{built.version}-copy1"}


def test_rehearsal_with_a_missing_store_fails_with_a_message_of_one_line(tmp_path: Path) -> None:
    result = run("-m", "loadtests.rehearsal", "--store", tmp_path / "none")
    assert result.returncode == 2
    assert result.stderr.strip().endswith("none: expected a bundle store, found none; run `recollect build`")
    assert "Traceback" not in result.stderr
