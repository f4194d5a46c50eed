"""The soak test reports the server's memory after each version swap and between requests."""

from __future__ import annotations

from typing import Any

from tests.loadtests.programs import last_line, run


def test_soak_reports_memory_over_swaps_and_requests(built: Any) -> None:
    result = run("-m", "loadtests.soak", "--store", built.store, "--swaps", 2, "--requests", 300)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert figures["errors"] == 0
    assert (figures["swaps"]["count"], figures["requests"]["count"]) == (2, 300)
    for part in ("swaps", "requests"):
        for sample in ("first", "settled", "last"):
            memory = figures[part][sample]
            assert memory["rss_mb"] >= memory["anonymous_mb"] > 0
        assert part in result.stderr
