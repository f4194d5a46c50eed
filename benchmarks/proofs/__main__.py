"""`python -m benchmarks.proofs NAME ...` repeats proofs and prints their measurements.

The exit code is 1 if a claim does not hold, and 2 if a dataset cannot be read. `python -m benchmarks.proofs table`
prints the page of the recorded measurements, `docs/claims.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.proofs.claim import Claim, Measurement, read_measurements, record
from benchmarks.proofs.claims import CLAIMS
from benchmarks.proofs.report import page, section

RECORDED = Path(__file__).parent / "recorded"
_MEMORY = ("cache", "clustering")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proofs", description="Repeat claims of the papers.")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*CLAIMS, *_MEMORY, "table"], help="what to repeat")
    parser.add_argument(
        "--data", nargs="+", type=Path, default=[None], metavar="FOLDER", help="datasets; default: the built-in sample"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="default: 0 1 2")
    parser.add_argument("--work", type=Path, help="folder for samples and runs, to keep them; default: a temporary one")
    parser.add_argument("--record", action="store_true", help="write the measurements for the page")
    given = parser.parse_args(arguments)
    try:
        held = [_run(name, given) for name in given.names]
    except Exception as error:
        import recollect

        if not isinstance(error, recollect.ERRORS):
            raise
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0 if all(held) else 1


def _run(name: str, given: argparse.Namespace) -> bool:
    if name == "table":
        print(page(CLAIMS.values(), {each: list(read_measurements(RECORDED / f"{each}.json")) for each in CLAIMS}))
        return True
    if name == "cache":
        return _prove_cache()
    if name == "clustering":
        return _prove_clustering()
    return _prove(CLAIMS[name], given)


def _prove(claim: Claim, given: argparse.Namespace) -> bool:
    """Measure a claim with all seeds on all datasets, and print its part of the page."""
    measured = []
    for folder in given.data if claim.uses_data else [None]:
        data = "random texts" if not claim.uses_data else "built-in sample" if folder is None else folder.resolve().name
        with _work_folder(given.work) as work:
            measured.append(Measurement.of(data, [claim.measure(folder, work, seed) for seed in given.seeds]))
        if given.record:
            record(RECORDED / f"{claim.name}.json", measured[-1:])
    print("\n".join(section(claim, measured)))
    return all(row.holds(check) for row in measured for check in claim.checks)


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _prove_cache() -> bool:
    """With the gradient cache, a label adds little more memory than its vector and its gradient."""
    from benchmarks.proofs.cache_memory import MAX_NUMBERS_PER_LABEL, numbers_per_label, prove

    peaks = prove()
    print(f"{'labels':>8} {'cached, MB':>11} {'kept graphs, MB':>16}")
    for peak in peaks:
        direct = "-" if peak.direct_bytes is None else f"{peak.direct_bytes / 1e6:,.0f}"
        print(f"{peak.labels:8,} {peak.cached_bytes / 1e6:11,.0f} {direct:>16}")
    growth = numbers_per_label(peaks)
    print(f"each label adds {growth:.2f} numbers for each dimension; its vector and its gradient are 2 of them")
    smaller = all(peak.direct_bytes is None or peak.cached_bytes < peak.direct_bytes for peak in peaks)
    return smaller and growth <= MAX_NUMBERS_PER_LABEL


def _prove_clustering() -> bool:
    """Clustering finds planted clusters in little memory."""
    from benchmarks.proofs.clustering import MAX_BYTES, MIN_GAIN, prove

    result = prove()
    print(f"clustered in {result.seconds:.1f} s, in {result.peak_bytes / 1e6:,.0f} MB beside the mapped vectors")
    print(
        f"mean cosine to the cluster's mean {result.tightness:.3f}: "
        f"planted clusters {result.planted:.3f}, random ones {result.random:.3f}"
    )
    return result.peak_bytes <= MAX_BYTES and result.gain >= MIN_GAIN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
