"""The program on the claims of the papers gives each claim a row, with a verdict if there are five seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.papers.claims import PAGE, RESULTS, judge, page, read_figures
from benchmarks.papers.rows import PAPERS
from tests import forked
from tests.test_architecture import REPOSITORY
from tests.tiny_runs import write_tiny_encoder


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ([40, 42, 41, 42, 41], ("<.001", "trend")),  # differences of 10, 9, 11, 8 and 10
        ([49, 50, 50, 48, 51], (".033", "trend")),  # 1, 1, 2, 2 and 0
        ([48, 49, 51, 50, 50.5], (".051", "not seen")),  # 2, 2, 1, 0 and .5: their mean exceeds their deviation
        ([60, 62, 61, 60, 61], ("<.001", "reversed")),
        ([40, 42, 41, 42], ("–", "too few seeds")),
    ],
)
def test_a_difference_counts_if_it_is_significant_over_five_seeds(
    second: list[float], verdict: tuple[str, str]
) -> None:
    assert judge([50, 51, 52, 50, 51][: len(second)], second) == verdict


def test_the_program_gives_each_claim_a_row_and_keeps_the_figures_of_a_killed_run(tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    results, written = tmp_path / "results.jsonl", tmp_path / "claims.md"
    command = [sys.executable, "-m", "benchmarks.papers.claims", "--dataset", "examples/garden", "--seeds", "1"]
    command += ["--encoder", encoder, "--results", results, "--page", written, "--most-steps", "1"]
    command += ["--texts", "60", "--tests", "20", "--pairs", "100"]

    def run() -> list[str]:
        result = forked.run([*map(str, command)], cwd=REPOSITORY, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return results.read_text().splitlines()

    lines = run()
    rows = [line for line in written.read_text().splitlines() if line.endswith("|–|too few seeds|")]
    assert len(rows) == sum(map(len, PAPERS.values()))
    results.write_text("\n".join(lines[:-1]) + "\n")  # as a killed run leaves it
    again = run()
    assert (again[:-1], len(again)) == (lines[:-1], len(lines))


def test_the_page_has_the_kept_figures() -> None:
    assert PAGE.read_text() == page(read_figures(RESULTS))
