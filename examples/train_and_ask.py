"""Train on a dataset, build a bundle and answer queries with it, in one Python program.

python examples/train_and_ask.py                                       # the small dataset in examples/garden
python examples/train_and_ask.py my_data/ --work my_work/ "a query" "another query"
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import recollect

GARDEN = Path(__file__).parent / "garden"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, default=GARDEN, help="dataset folder")
    parser.add_argument("queries", nargs="*", default=["garden chair", "lawn mower"], help="texts to ask")
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder for the run and the store")
    parser.add_argument("--method", default="rae", help="training method")
    arguments = parser.parse_args()
    try:
        run = recollect.train(arguments.dataset, out=arguments.work / "run", method=arguments.method, max_length=32)
        tuned = recollect.tune(run)
        version = recollect.build(run, store=arguments.work / "store", activate=True)
        model = recollect.open(arguments.work / "store", version=version)
    except recollect.ERRORS as error:
        print(error, file=sys.stderr)
        return 2

    print(f"version {model.version}, lambda {tuned['lambda']:g} chosen on held-out queries")
    for query, labels in zip(arguments.queries, model.predict(arguments.queries, top_k=3, explain=True), strict=True):
        print(f"\n{query}")
        for label in labels:
            print(f"  {label.score:.3f}  {label.text}")
            for reason in (label.because or [])[:2]:
                print(f"           because of the {reason.kind} {reason.text!r} ({reason.share:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
