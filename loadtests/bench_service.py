"""`python loadtests/bench_service.py --store STORE --seconds 20`: what serving costs beyond answering.

The current version is asked twice: in this process, and over HTTP as `recollect serve` serves it, with queries that are
texts of its own memory. The last line printed is JSON. Client and server share the machine's cores; CPU times do not
depend on that, latencies at saturation do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from service.errors import ServiceError
from service.predictor import Predictor
from service.store import Store

_QUERIES, _BATCH = 512, 32
# Connections, all at work at saturation; requests a second under light load.
_CLIENTS, _LIGHT_RATE = 16, 20


@dataclasses.dataclass(frozen=True)
class Measured:
    """The JSON line; milliseconds a query or request.

    Attributes:
        raw_cpu_ms: CPU to tokenise, encode, search and combine, in batches, without HTTP.
        served_cpu_ms: CPU of the server at saturation, a request.
        raw_p50_ms: One query at a time, without HTTP, one right after the other.
        raw_paced_p50_ms: The same at the rate of the light load: a machine that rests between queries is slower.
        light_p50_ms: Over HTTP, under light load.
        saturated_qps: Requests answered a second.
        errors: Answers that were no 200, of all loads.
    """

    raw_cpu_ms: float
    served_cpu_ms: float
    cpu_ratio: float
    raw_p50_ms: float
    raw_paced_p50_ms: float
    light_p50_ms: float
    light_p99_ms: float
    saturated_qps: float
    errors: int


class Client:
    """One connection that is kept, and as little work around it as there can be."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def open(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def ask(self, query: str) -> int:
        """Post a query; the status that comes back."""
        body = json.dumps({"query": query}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.split(b":")[1]))
        return int(answer.split(b" ", 2)[1])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python loadtests/bench_service.py", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store; its current version is measured")
    parser.add_argument("--seconds", type=float, default=20, help="how long each load lasts; 20 unless told")
    parser.add_argument("--threads", type=int, default=0, help="as of `recollect serve`; one a core unless told")
    given = parser.parse_args(arguments)
    try:
        measured = measure(given.store, given.seconds, given.threads)
    except ServiceError as error:
        parser.error(str(error))
    print(json.dumps(dataclasses.asdict(measured)))
    return 0


def measure(store: Path, seconds: float, threads: int) -> Measured:
    """Ask a store's current version, in this process and over HTTP.

    Raises:
        StoreError, BundleError: If it cannot be opened.
    """
    opened = Store(store)
    predictor = Predictor.open(opened.open(opened.require_current()), threads=1)
    texts = predictor.bundle.instance_texts
    queries = [texts[row] for row in np.linspace(0, len(texts) - 1, num=_QUERIES, dtype=int).tolist()]
    raw_cpu = _raw_cpu(predictor, queries, seconds)
    raw_p50, paced_p50 = (_raw_p50(predictor, queries, seconds, rest) for rest in (0, 1 / _LIGHT_RATE))
    with _server(store, threads) as (process, port):
        asyncio.run(_saturate(port, queries, 2.0))  # warm
        before, start = _cpu_seconds(process), time.perf_counter()
        statuses = asyncio.run(_saturate(port, queries, seconds))
        spent, lasted = _cpu_seconds(process) - before, time.perf_counter() - start
        light, light_statuses = asyncio.run(_light(port, queries, seconds))
    served_cpu = 1e3 * spent / len(statuses)
    return Measured(
        raw_cpu_ms=round(raw_cpu, 3),
        served_cpu_ms=round(served_cpu, 3),
        cpu_ratio=round(served_cpu / raw_cpu, 3),
        raw_p50_ms=round(raw_p50, 3),
        raw_paced_p50_ms=round(paced_p50, 3),
        light_p50_ms=round(float(np.median(light)), 3),
        light_p99_ms=round(float(np.percentile(light, 99)), 3),
        saturated_qps=round(len(statuses) / lasted, 1),
        errors=sum(status != 200 for status in (*statuses, *light_statuses)),
    )


def _raw_cpu(predictor: Predictor, queries: list[str], seconds: float) -> float:
    options, asked = predictor.options(), 0
    before, until = time.process_time(), time.perf_counter() + seconds / 2
    while time.perf_counter() < until:
        start = asked % len(queries)
        predictor.predict(queries[start : start + _BATCH], options)
        asked += _BATCH
    return 1e3 * (time.process_time() - before) / asked


def _raw_p50(predictor: Predictor, queries: list[str], seconds: float, rest_seconds: float) -> float:
    spent: list[float] = []
    options, until = predictor.options(), time.perf_counter() + seconds / 2
    while time.perf_counter() < until:
        time.sleep(rest_seconds)
        start = time.perf_counter()
        predictor.predict([queries[len(spent) % len(queries)]], options)
        spent.append(time.perf_counter() - start)
    return 1e3 * float(np.median(spent))


@contextlib.contextmanager
def _server(store: Path, threads: int) -> Iterator[tuple[int, int]]:
    """`recollect serve`: its process and its port."""
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", "0"]
    with subprocess.Popen([*command, "--threads", str(threads)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if (event := json.loads(line)).get("event") == "serving":
                break
        else:
            raise SystemExit(f"bench_service: `recollect serve` ended: {line.strip()}")
        try:
            yield process.pid, int(event["url"].rpartition(":")[2])
        finally:
            process.terminate()


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _saturate(port: int, queries: list[str], seconds: float) -> list[int]:
    """The statuses of all that clients in a closed loop get answered."""
    statuses: list[int] = []
    until = time.perf_counter() + seconds

    async def ask(number: int) -> None:
        client = await Client("127.0.0.1", port).open()
        while time.perf_counter() < until:
            statuses.append(await client.ask(queries[(number + len(statuses)) % len(queries)]))

    await asyncio.gather(*(ask(number * 31) for number in range(_CLIENTS)))
    return statuses


async def _light(port: int, queries: list[str], seconds: float) -> tuple[list[float], list[int]]:
    """Milliseconds, from when each request was due, and statuses at a constant rate of arrival."""
    spent: list[float] = []
    statuses: list[int] = []
    idle: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(_CLIENTS):
        idle.put_nowait(await Client("127.0.0.1", port).open())
    first = time.perf_counter()

    async def ask(nth: int) -> None:
        due = first + nth / _LIGHT_RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        client = await idle.get()
        statuses.append(await client.ask(queries[nth % len(queries)]))
        spent.append(1e3 * (time.perf_counter() - due))
        idle.put_nowait(client)

    await asyncio.gather(*(ask(nth) for nth in range(int(seconds * _LIGHT_RATE))))
    return spent, statuses


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
