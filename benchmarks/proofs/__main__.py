"""`python -m benchmarks.proofs NAME` prints what was measured, and exits with 1 if it does not prove the point."""

from __future__ import annotations

import sys
from collections.abc import Callable


def _decoupled() -> bool:
    from benchmarks.proofs.decoupled import prove

    precision = prove()
    for name, percent in precision.items():
        _say(f"{name:18} P@1 {percent:6.2f}")
    return precision["decoupled softmax"] > 95 and precision["softmax"] < 50


def _memorise() -> bool:
    from benchmarks.proofs.memorise import prove

    percent = prove()
    _say(f"random pairs memorised: P@1 {percent:.2f}")
    return percent == 100


def _lambda() -> bool:
    from benchmarks.proofs.lambda_curve import prove

    curve = prove()
    for lambda_, percent in curve.items():
        _say(f"lambda {lambda_:<4g} P@1 {percent:6.2f}")
    return max(curve.values()) > max(curve[0], curve[1])


def _cache() -> bool:
    from benchmarks.proofs.cache_memory import MOST_ADDED, added, prove

    peaks = prove()
    _say(f"{'labels':>8} {'cached, MB':>11} {'kept graphs, MB':>16}")
    for peak in peaks:
        direct = "-" if peak.direct_bytes is None else f"{peak.direct_bytes / 1e6:,.0f}"
        _say(f"{peak.labels:8,} {peak.cached_bytes / 1e6:11,.0f} {direct:>16}")
    _say(f"a label of the last pool adds {added(peaks):.2f} numbers a dimension: 2 are its vector and its gradient")
    smaller = all(peak.direct_bytes is None or peak.cached_bytes < peak.direct_bytes for peak in peaks)
    return smaller and added(peaks) <= MOST_ADDED


def _clustering() -> bool:
    from benchmarks.proofs.clustering import LEAST_GAIN, MOST_BYTES, prove

    made = prove()
    _say(f"clustered in {made.seconds:.1f} s, in {made.peak_bytes / 1e6:,.0f} MB beside the mapped vectors")
    _say(
        f"mean cosine to the cluster's mean {made.tightness:.3f}: "
        f"planted clusters {made.planted:.3f}, random ones {made.random:.3f}"
    )
    return made.peak_bytes <= MOST_BYTES and made.gain >= LEAST_GAIN


def _say(line: str) -> None:
    print(line)  # noqa: T201


PROOFS: dict[str, Callable[[], bool]] = {
    "decoupled": _decoupled,
    "memorise": _memorise,
    "lambda": _lambda,
    "cache": _cache,
    "clustering": _clustering,
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PROOFS:
        print(f"usage: python -m benchmarks.proofs {{{','.join(PROOFS)}}}", file=sys.stderr)  # noqa: T201
        return 2
    return 0 if PROOFS[arguments[0]]() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
