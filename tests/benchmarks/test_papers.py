"""The programs on the claims of the papers give each claim a row with a verdict."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.papers.claims import PAPERS, Claim
from tests import forked
from tests.index_builder.conftest import write_tiny_encoder
from tests.test_architecture import REPOSITORY

VERDICTS = {"trend", "not seen", "reversed"}


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ([40, 42, 41], "trend"),  # differences of 10, 9 and 11
        ([49, 53, 51], "not seen"),  # differences of 1, -2 and 1
        ([60, 62, 61], "reversed"),
    ],
)
def test_a_difference_counts_if_it_exceeds_its_standard_deviation(second: list[float], verdict: str) -> None:
    claim = Claim("Table 1", "P@1: a, b", (58.4, 42.15), [50, 51, 52], second)
    assert claim.verdict == verdict
    assert claim.row().startswith("|Table 1|P@1: a, b|58.4, 42.15|51.0±1.0, ")


@pytest.mark.parametrize("program", PAPERS)
def test_a_program_gives_each_claim_a_row_with_a_verdict(program: str, tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    command = [sys.executable, "-m", f"benchmarks.papers.{program}", "--dataset", "examples/garden", "--pairs", "200"]
    command += ["--encoder", str(encoder)]
    options = ["--texts", "60", "--tests", "20", "--seeds", "1", "--epochs", "1", "--results", str(tmp_path)]
    result = forked.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = result.stdout.splitlines()
    assert {row.split("|")[-2] for row in rows} <= VERDICTS
    kept = json.loads((tmp_path / f"{program}.json").read_text())
    assert [Claim(**claim).row() for claim in kept] == rows
    assert len(rows) == len(importlib.import_module(f"benchmarks.papers.{program}").CLAIMS)
