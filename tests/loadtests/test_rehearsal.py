"""The rehearsal: a deployment passes every stage, and an error fails a stage unless the stage allows this error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from loadtests.load import Exchange
from loadtests.rehearsal import STAGES, Summary, summarise
from tests.loadtests.programs import last_line, run

MISSING = [name for name in ("redis-server", "nginx") if shutil.which(name) is None]
GOOD = [Exchange(number, 0.001 * number, 200, f"v{number % 2}", "") for number in range(100)]


def summary(stage: str, *others: Exchange, problems: tuple[str, ...] = ()) -> Summary:
    return summarise(STAGES[stage], [*GOOD, *others], problems, rate=50, seconds=2.5)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_rehearsal_of_a_real_deployment_passes_its_stages(built: Any) -> None:
    stages = ["swap_storm", "redis_stalled", "replica_killed"]
    flags = ["--store", built.store, "--stages", ",".join(stages), "--seconds", 1, "--connections", 8, "--threads", 1]
    # A fixed rate that any machine can serve. The default rate depends on the speed that is measured first.
    result = run("-m", "loadtests.rehearsal", *flags, "--rate", 50)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert not figures["failed"]
    assert [stage["stage"] for stage in figures["stages"]] == stages
    versions = {version for stage in figures["stages"] for version in stage["versions"]}
    assert versions == {f"{built.version}-copy0", f"{built.version}-copy1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--store", "no-such-store"], "no-such-store: expected a bundle store, found none; run `recollect build`"),
        (["--store", "no-such-store", "--stages", "steady,unknown"], "expected stages among steady,"),
    ],
)
def test_wrong_options_fail_with_a_message_of_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    result = run("-m", "loadtests.rehearsal", *options)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", STAGES)
def test_requests_are_refused_only_in_the_overload_stage(name: str) -> None:
    refused = Exchange(0, 0.1, 503, "v1", "503 overloaded")
    assert summary(name, refused).failed == (name != "overload")


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("error", ["503 overloaded without Retry-After", "lost: closed", "500 internal"])
def test_every_other_error_fails_every_stage(name: str, error: str) -> None:
    found = summary(name, Exchange(0, 0.1, 500, "", error))
    assert found.failed
    assert found.unexpected == {error: 1}
