"""`python -m benchmarks.proofs NAME` repeats one proof and prints its measurements.

The exit code is 1 if the proof fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PROOFS:
        print(f"usage: python -m benchmarks.proofs {{{','.join(PROOFS)}}}", file=sys.stderr)  # noqa: T201
        return 2
    return 0 if PROOFS[arguments[0]]() else 1


def _prove_decoupled() -> bool:
    """Decoupled softmax learns the marker; softmax does not."""
    from benchmarks.proofs.decoupled import prove

    precision = prove()
    for name, percent in precision.items():
        _print(f"{name:18} P@1 {percent:6.2f}")
    return precision["decoupled softmax"] > 95 and precision["softmax"] < 50


def _prove_memorise() -> bool:
    """A dual encoder memorises random pairs."""
    from benchmarks.proofs.memorise import prove

    percent = prove()
    _print(f"random pairs memorised: P@1 {percent:.2f}")
    return percent == 100


def _prove_lambda() -> bool:
    """Instances and labels together are better than either alone."""
    from benchmarks.proofs.lambda_curve import prove

    curve = prove()
    for lambda_, percent in curve.items():
        _print(f"lambda {lambda_:<4g} P@1 {percent:6.2f}")
    return max(curve.values()) > max(curve[0], curve[1])


def _prove_cache() -> bool:
    """With the gradient cache, a label adds little more memory than its vector and its gradient."""
    from benchmarks.proofs.cache_memory import MAX_NUMBERS_PER_LABEL, numbers_per_label, prove

    peaks = prove()
    _print(f"{'labels':>8} {'cached, MB':>11} {'kept graphs, MB':>16}")
    for peak in peaks:
        direct = "-" if peak.direct_bytes is None else f"{peak.direct_bytes / 1e6:,.0f}"
        _print(f"{peak.labels:8,} {peak.cached_bytes / 1e6:11,.0f} {direct:>16}")
    growth = numbers_per_label(peaks)
    _print(f"each label adds {growth:.2f} numbers for each dimension; its vector and its gradient are 2 of them")
    smaller = all(peak.direct_bytes is None or peak.cached_bytes < peak.direct_bytes for peak in peaks)
    return smaller and growth <= MAX_NUMBERS_PER_LABEL


def _prove_clustering() -> bool:
    """Clustering finds planted clusters in little memory."""
    from benchmarks.proofs.clustering import MAX_BYTES, MIN_GAIN, prove

    result = prove()
    _print(f"clustered in {result.seconds:.1f} s, in {result.peak_bytes / 1e6:,.0f} MB beside the mapped vectors")
    _print(
        f"mean cosine to the cluster's mean {result.tightness:.3f}: "
        f"planted clusters {result.planted:.3f}, random ones {result.random:.3f}"
    )
    return result.peak_bytes <= MAX_BYTES and result.gain >= MIN_GAIN


def _print(line: str) -> None:
    print(line)  # noqa: T201


PROOFS: dict[str, Callable[[], bool]] = {
    "decoupled": _prove_decoupled,
    "memorise": _prove_memorise,
    "lambda": _prove_lambda,
    "cache": _prove_cache,
    "clustering": _prove_clustering,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
