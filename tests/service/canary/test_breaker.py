"""The circuit breaker stops a canary that fails more often or answers more slowly than the current version."""

from __future__ import annotations

import random

import pytest

from recollect.service.canary.breaker import BreakerLimits, CircuitBreaker

LIMITS = BreakerLimits(window=100, max_errors=0.02, max_slowdown=2.0)


def judged(canary: list[float | None], current: list[float | None], share: float = 0.5) -> str | None:
    """The reason for which the breaker stops the canary, after answers that alternate between both versions."""
    breaker = CircuitBreaker(LIMITS, share)
    steps = max(len(canary), len(current))
    for step in range(steps):
        for answers, record in ((current, breaker.record_current), (canary, breaker.record_canary)):
            for answer in answers[step * len(answers) // steps : (step + 1) * len(answers) // steps]:
                record(answer)
    return breaker.stopped


def test_canary_as_good_as_the_current_version_is_not_stopped() -> None:
    generator = random.Random(5)
    latencies: list[float | None] = [generator.lognormvariate(-5, 0.5) for _ in range(4000)]
    assert judged(latencies[:2000], latencies[2000:]) is None
    assert judged([0.010] * 1000, [0.006] * 1000) is None
    assert judged([0.001] * 1000, [0.010, None] * 500) is None


def test_canary_is_stopped_at_the_first_error_above_the_limit() -> None:
    breaker = CircuitBreaker(LIMITS, 0.05)
    for number in range(3):
        assert breaker.stopped is None, number
        breaker.record_current(0.01)
        breaker.record_canary(None)
    assert breaker.stopped == "3 of its last 3 requests failed, and 0.0% of the current version's requests"


def test_old_errors_leave_the_window() -> None:
    answers: list[float | None] = ([None] + [0.01] * 99) * 10
    assert judged(answers, [0.01] * 1000) is None
    assert judged([*answers, None, None, None], [0.01] * 1003) is not None


def test_errors_of_both_versions_do_not_stop_the_canary() -> None:
    generator = random.Random(5)
    outage: list[float | None] = [None if generator.random() < 0.5 else 0.01 for _ in range(8000)]
    assert judged(outage[:4000], outage[4000:]) is None
    assert judged([None] * 100, outage[:200]) is not None


@pytest.mark.parametrize(
    ("canary", "reason"),
    [
        ([0.021] * 100, "the median of its latency is 21.0 ms, and 10.0 ms for the current version"),
        ([0.010] * 90 + [0.5] * 10, "the 95th percentile of its latency is 500.0 ms, and 10.0 ms for the current "),
    ],
)
def test_slow_canary_is_stopped_when_its_window_is_full(canary: list[float | None], reason: str) -> None:
    current: list[float | None] = [0.010] * 200
    assert judged(canary[:-1], current) is None
    assert str(judged(canary, current)).startswith(reason)


def test_slow_canary_is_not_stopped_while_the_current_version_has_too_few_answers_to_compare() -> None:
    assert judged([0.5] * 1000, [0.01] * 99, share=1.0) is None
    assert judged([0.5] * 1000, []) is None


def test_only_answers_of_about_the_same_time_are_compared() -> None:
    """In the first half, both versions are fast; in the second half, an overload slows down both."""
    both: list[float | None] = [0.01] * 3000 + [0.1] * 3000
    assert judged(both[::20], both, share=0.05) is None


def test_breaker_keeps_its_first_reason() -> None:
    breaker = CircuitBreaker(LIMITS, 0.5)
    breaker.stop("another replica stopped it")
    for _ in range(200):
        breaker.record_canary(None)
    breaker.stop("later")
    assert breaker.stopped == "another replica stopped it"


def test_tiny_share_does_not_use_much_memory() -> None:
    breaker = CircuitBreaker(LIMITS, 1e-9)
    for _ in range(20_000):
        breaker.record_current(0.01)
    for _ in range(100):
        breaker.record_canary(0.03)
    assert breaker.stopped is not None
