"""A canary answers a share of the requests, and always the requests with the same keys."""

from __future__ import annotations

import pytest

from recollect.service.canary.breaker import BreakerLimits
from recollect.service.canary.trial import Trial, position
from recollect.service.store.activation_record import Canary

LIMITS = BreakerLimits(window=10, max_errors=0.0, max_slowdown=2.0)
KEYS = [f"user {number}" for number in range(20_000)]


def trial(share: float, version: str = "B") -> Trial:
    return Trial(Canary(version=version, share=share), 1, LIMITS)


def included(share: float, version: str = "B") -> set[str]:
    return {key for key in KEYS if trial(share, version).includes(key)}


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_share_of_the_keys_is_the_share_of_the_canary(share: float) -> None:
    assert abs(len(included(share)) / len(KEYS) - share) < 0.01


def test_full_share_includes_every_key() -> None:
    assert included(1.0) == {*KEYS}


def test_key_stays_in_the_trial_when_the_share_grows() -> None:
    assert included(0.01) < included(0.05) < included(0.5)


def test_other_keys_try_another_version() -> None:
    both = included(0.05, "B") & included(0.05, "C")
    assert len(both) / len(KEYS) < 0.01


def test_position_of_a_key_does_not_depend_on_process_or_release() -> None:
    assert position("20261122-101500-3f2a9c", "user 1") == 0.06094691335599478
    assert 0 <= position("B", "\udc80 half a pair") < 1


def test_stopped_trial_includes_no_key() -> None:
    stopped = trial(1.0)
    stopped.breaker.stop("too slow")
    assert not any(stopped.includes(key) for key in KEYS[:100])


def test_only_errors_of_the_canary_stop_the_trial() -> None:
    recorded = trial(0.5)
    for _ in range(20):
        recorded.record("A", None)
        recorded.record("B", 0.1)
    assert recorded.breaker.stopped is None
    for _ in range(20):
        recorded.record("A", 0.1)
    recorded.record("B", None)
    assert recorded.breaker.stopped is not None
