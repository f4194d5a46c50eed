"""The soak test reports the server's memory after each version swap, as numbers and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.programs import last_line, run


@pytest.mark.slow
def test_soak_reports_memory_over_swaps_and_requests(built: Any, tmp_path: Path) -> None:
    plot = tmp_path / "soak.html"
    result = run("-m", "loadtests.soak", "--store", built.store, "--swaps", 2, "--requests", 300, "--plot", plot)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert figures["errors"] == 0
    assert (figures["swaps"]["count"], figures["requests"]["count"]) == (2, 300)
    for part in ("swaps", "requests"):
        for sample in ("first", "settled", "last"):
            memory = figures[part][sample]
            assert memory["rss_mb"] >= memory["anonymous_mb"] > 0
    assert figures["open_at_once"]["two_rss_mb"] > figures["open_at_once"]["one_rss_mb"] > 0
    assert "Memory over swaps" in plot.read_text()
