"""Build an untrained and a trained model from one dataset, and compare them on its test split.

python examples/evaluate_and_compare.py                                # the small dataset in examples/garden
python examples/evaluate_and_compare.py my_data/ --work my_work/ --method unidec

`recollect compare` does the same for all methods, and adds significance tests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import recollect

GARDEN = Path(__file__).parent / "garden"
METRICS = ("P@1", "P@5", "nDCG@5", "R@10")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, default=GARDEN, help="dataset folder")
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder for the runs and the store")
    parser.add_argument("--method", default="rae", help="training method")
    arguments = parser.parse_args()

    store = arguments.work / "store"
    flags = {"untrained": {"epochs": 0}, arguments.method: {"method": arguments.method}}
    print(f"{'':12}" + "".join(f"{name:>9}" for name in ("lambda", *METRICS)))
    try:
        for name, settings in flags.items():
            run = recollect.train(arguments.dataset, out=arguments.work / name, max_length=32, **settings)
            version = recollect.build(run, store=store)
            results = recollect.evaluate(arguments.dataset, store=store, version=version, lambda_=[0, 0.5, 1])
            for row in results["rows"]:
                print(f"{name:12}{row['lambda']:9g}" + "".join(f"{row[metric]:9.1f}" for metric in METRICS))
    except recollect.ERRORS as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
