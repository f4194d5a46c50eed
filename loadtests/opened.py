"""What opened versions cost: a process of its own that opens some at once, asks each, and tells its memory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from loadtests.processes import Memory, memory
from loadtests.workload import spread
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.store.store import Store

_QUERIES, _BATCH = 256, 32


def memory_with(store: Path, versions: list[str]) -> Memory:
    """Memory of a process that has these versions open."""
    command = [sys.executable, "-m", "loadtests.opened", str(store), *versions]
    return Memory(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def main(store: str, *versions: str) -> None:
    opened = [Predictor.open(Store(Path(store)).open(version), threads=1) for version in versions]
    for predictor in opened:
        queries = spread(predictor.bundle.instance_texts, _QUERIES)
        for start in range(0, len(queries), _BATCH):
            predictor.predict(queries[start : start + _BATCH], resolve_options(predictor.defaults))
    print(json.dumps(dataclasses.asdict(memory(os.getpid()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
