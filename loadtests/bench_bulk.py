"""Throughput of `recollect predict --input`, against that of the encoder alone.

    python -m loadtests.bench_bulk --store store/ --input queries.jsonl

The encoder alone: one process for each core encodes the same texts, in order of their lengths. The opening of the
version is left out of both. The shares compare CPU time, because other programs change the time that passes.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import recollect
from recollect.service.threads import usable_cores


class Cost(NamedTuple):
    """Time that passed, and CPU time of all processes, in seconds."""

    passed: float
    cpu: float


def encode(store: str, texts: Sequence[str]) -> Cost:
    """Encode texts in this process."""
    predictor = recollect.open(store).predictor
    start, cpu = time.perf_counter(), time.process_time()
    predictor.encode(texts)
    return Cost(time.perf_counter() - start, time.process_time() - cpu)


def encode_on_all_cores(store: str, texts: Sequence[str], cores: int) -> Cost:
    ordered = sorted(texts, key=len)
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        costs = list(pool.map(encode, [store] * cores, [ordered[core::cores] for core in range(cores)]))
    return Cost(max(cost.passed for cost in costs), sum(cost.cpu for cost in costs))


def answer(store: str, texts: Sequence[str], options: dict[str, float]) -> Cost:
    """Answer texts with `recollect.predict_file`."""
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder) / "queries.jsonl"
        queries.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        start, cpu = time.perf_counter(), _cpu()
        recollect.predict_file(queries, Path(folder) / "answers.jsonl", store=store, columns=[], **options)
        return Cost(time.perf_counter() - start, _cpu() - cpu)


def _cpu() -> float:
    """CPU time of this process and of its ended children."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--input", type=Path, required=True, help="JSON lines with the field text")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--option", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    arguments = parser.parse_args()
    with arguments.input.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line, _ in zip(file, range(arguments.queries), strict=False)]
    options = {name: json.loads(value) for name, value in arguments.option}
    cores, opening = usable_cores(), answer(arguments.store, texts[:1], options)
    raw, bulk = encode_on_all_cores(arguments.store, texts, cores), answer(arguments.store, texts, options)
    bulk = Cost(bulk.passed - opening.passed, bulk.cpu - opening.cpu)
    for name, cost in (("encoder alone", raw), ("bulk answers", bulk)):
        print(
            f"{name:14}{len(texts) / cost.passed:10,.0f} queries/s  {cost.cpu / len(texts) * 1e6:8,.0f} CPU us a query"
            f"  {len(texts) * cores / cost.cpu:10,.0f} queries/s on {cores} idle cores"
        )
    print(
        f"share of the encoder's throughput: {raw.cpu / bulk.cpu:.1%} by CPU time, {raw.passed / bulk.passed:.1%} here"
    )


if __name__ == "__main__":
    main()
