"""Malformed requests: the service answers them without a fault, and it keeps answering."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.malformed.generate import generate
from tests.loadtests.programs import last_line, run


@pytest.mark.slow
def test_service_survives_thousands_of_malformed_requests(built: Any) -> None:
    flags = ("--requests", 3_000, "--seed", 7, "--max-growth-mb", 500)  # the growth of so few requests means nothing
    result = run("-m", "loadtests.malformed", "--store", built.store, *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = last_line(result)
    assert (figures["faults"], figures["lost_probes"], figures["requests"]) == (0, 0, 3_000)
    assert {"200", "400", "404", "405", "413", "415", "422", "431"} <= set(figures["statuses"])
    assert sum(figures["kinds"].values()) == 3_000
    assert figures["probes"] > 0


def test_seed_and_number_determine_a_request() -> None:
    assert generate(1, 5) == generate(1, 5)
    assert len({b"".join(generate(seed, 5).parts) for seed in range(20)}) > 10
