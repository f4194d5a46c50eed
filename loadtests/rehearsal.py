"""`python -m loadtests.rehearsal --store STORE --seconds 10`: a deployment under load, with faults.

The rehearsal starts Redis, two replicas and nginx on free ports. They serve two copies of the store's current version.
In each stage, requests arrive at a constant rate, and every answer is compared with the expected answer of its version.
The fault of a stage is caused after a third of its time, and repaired after two thirds. Flags that the rehearsal does
not know are passed to `recollect serve`. It prints a table, and JSON in the last line. The exit status is 1 after any
unexpected error.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loadtests.client import Reply
from loadtests.deployment import Deployment, MissingProgramError, deployed
from loadtests.expected_answers import ExpectedAnswers
from loadtests.load import NEVER_SENT, Exchange, Load, closed_loop, latency_percentiles, open_loop
from loadtests.replica import ReplicaError
from loadtests.swaps import copied_versions
from loadtests.workload import draw_requests
from recollect.service.errors import ServiceError
from recollect.service.store.store import Store

# Request rates as shares of saturation.
_NORMAL, _OVERLOAD = 0.4, 3.0
# The stage `overload` uses this many times the usual connections, so that it fills the queues of the replicas.
_OVERLOAD_CONNECTIONS = 16
# Pause between two activations, so that each version answers some requests.
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Stage:
    """One stage of a rehearsal.

    Attributes:
        name: Name on the command line and in reports.
        load: Request rate as a share of the rate at saturation.
        allowed: Errors that do not fail this stage.
        cause: Causes the fault of this stage. It may return an exit status, which must be 0.
        repair: Repairs the fault.
    """

    name: str
    load: float = _NORMAL
    allowed: frozenset[str] = frozenset()
    cause: Callable[[Deployment], int | None] = lambda deployment: None
    repair: Callable[[Deployment], None] = lambda deployment: None


STAGES = {
    stage.name: stage
    for stage in (
        Stage("steady"),
        Stage("swap_storm"),  # versions are activated in turn
        Stage("redis_killed", cause=lambda it: it.redis.kill(), repair=lambda it: it.redis.start()),
        Stage("redis_stalled", cause=lambda it: it.redis.stall(), repair=lambda it: it.redis.resume()),
        Stage("replica_killed", cause=lambda it: it.replicas[0].kill(), repair=lambda it: it.replicas[0].start()),
        Stage("overload", load=_OVERLOAD, allowed=frozenset({"503 overloaded", NEVER_SENT})),
        Stage("drain", cause=lambda it: it.replicas[0].stop(), repair=lambda it: it.replicas[0].start()),
    )
}


@dataclass(frozen=True)
class Summary:
    """Figures of one stage. Only answers with status 200 have a latency. It counts from the time the request was due.

    Attributes:
        stage: Name of the stage.
        asked_qps: Requests per second that were due.
        answered_qps: Answers with status 200 per second.
        statuses: Number of answers for each status.
        versions: Number of answers for each version.
        errors: Number of errors of each kind that this stage allows.
        unexpected: Number of errors of each kind that this stage does not allow.
    """

    stage: str
    asked_qps: float
    answered_qps: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    versions: dict[str, int]
    errors: dict[str, int]
    unexpected: dict[str, int]

    @property
    def failed(self) -> bool:
        """Whether the stage has an unexpected error, or no answer at all."""
        return bool(self.unexpected) or not self.statuses


def summarise(stage: Stage, exchanges: list[Exchange], problems: Iterable[str], rate: float, seconds: float) -> Summary:
    """Summarise a stage.

    Args:
        stage: The stage.
        exchanges: All exchanges of the stage.
        problems: Errors that do not come from a request, such as a failed activation.
        rate: Requests per second that were due.
        seconds: Duration of the load.
    """
    errors = Counter([*(exchange.error for exchange in exchanges if exchange.error), *problems])
    answered = [exchange for exchange in exchanges if exchange.status]
    # Under overload, the last answers arrive long after the last request was due.
    duration = max([seconds, *(exchange.number / rate + exchange.seconds for exchange in answered)])
    p50, p99 = latency_percentiles(exchanges, 50, 99)
    return Summary(
        stage=stage.name,
        asked_qps=round(rate, 1),
        answered_qps=round(sum(exchange.status == 200 for exchange in exchanges) / duration, 1),
        p50_ms=p50,
        p99_ms=p99,
        statuses=dict(Counter(str(exchange.status) for exchange in answered)),
        versions=dict(Counter(exchange.version for exchange in answered if exchange.status == 200)),
        errors={kind: count for kind, count in errors.items() if kind in stage.allowed},
        unexpected={kind: count for kind, count in errors.items() if kind not in stage.allowed},
    )


class Rehearsal:
    """Runs stages on a deployment.

    Args:
        deployment: The deployment.
        store: Its store.
        versions: The versions of the store.
        options: `seconds`, `rate` and `connections`.
    """

    def __init__(
        self, deployment: Deployment, store: Store, versions: Sequence[str], options: argparse.Namespace
    ) -> None:
        self._deployment, self._store, self._versions, self._options = deployment, store, versions, options
        self._requests = draw_requests(store.open(versions[0]))
        self._expected = ExpectedAnswers(store, versions, self._requests)
        # The rate at saturation. Its measurement also warms up the replicas.
        answered: list[Exchange] = []
        seconds = closed_loop(self._load(answered), options.connections, min(5.0, options.seconds))
        self._saturation = max(1.0, len(answered) / seconds)

    def run(self, stage: Stage) -> Summary:
        """Send requests, and cause and repair the fault meanwhile."""
        seconds, connections = self._options.seconds, self._options.connections
        rate = self._options.rate
        if stage.load > 1 or not rate:
            rate = stage.load * self._saturation
        if stage.load > 1:
            connections *= _OVERLOAD_CONNECTIONS
        exchanges: list[Exchange] = []
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            fault = (
                pool.submit(self._swap_versions, ended)
                if stage.name == "swap_storm"
                else pool.submit(self._cause_and_repair, stage)
            )
            open_loop(self._load(exchanges), rate, seconds, connections)
            ended.set()
            problems = fault.result()
        return summarise(stage, exchanges, problems, rate, seconds)

    def _load(self, exchanges: list[Exchange]) -> Load:
        def request(number: int) -> tuple[str, bytes]:
            chosen = self._requests[number % len(self._requests)]
            return chosen.path, chosen.body

        def judge(number: int, reply: Reply) -> str:
            return self._expected.judge(self._requests[number % len(self._requests)], reply)

        return Load(self._deployment.address, request, judge, exchanges.append)

    def _cause_and_repair(self, stage: Stage) -> list[str]:
        """Cause and repair the fault of a stage; return the errors of both."""
        third = self._options.seconds / 3
        time.sleep(third)
        try:
            if status := stage.cause(self._deployment):
                return [f"expected exit status 0, found {status}"]
            time.sleep(third)
            stage.repair(self._deployment)
        except (ReplicaError, MissingProgramError) as error:
            return [str(error)]
        return []

    def _swap_versions(self, ended: threading.Event) -> list[str]:
        """Activate the versions in turn with `recollect activate --wait` until the stage ends; return the errors."""
        settings = {
            "RECOLLECT_STORE": str(self._store.root),
            "RECOLLECT_WAIT": "true",
            "RECOLLECT_REDIS_URL": self._deployment.redis_url,
        }
        problems = []
        for version in itertools.cycle(reversed(self._versions)):
            if ended.wait(_PAUSE_SECONDS):
                break
            command = [sys.executable, "-m", "recollect", "activate", version]
            done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
            if done.returncode:
                problems.append(f"activate: {done.stderr.strip()}")
        return problems


def _print_table(summaries: Sequence[Summary]) -> None:
    print(f"{'stage':15}{'asked/s':>9}{'200/s':>9}{'p50 ms':>9}{'p99 ms':>9}  errors", file=sys.stderr)
    for each in summaries:
        errors = [f"{count} {kind} (expected)" for kind, count in each.errors.items()]
        errors += [f"{count} {kind} (UNEXPECTED)" for kind, count in each.unexpected.items()]
        figures = (each.asked_qps, each.answered_qps, each.p50_ms, each.p99_ms)
        columns = "".join(f"{figure:9.1f}" for figure in figures)
        versions = f"{len(each.versions)} versions"
        print(f"{each.stage:15}{columns}  {', '.join(errors) or versions}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.rehearsal", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is served")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each stage; default: 10")
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to run, in this order; default: all")
    parser.add_argument("--rate", type=float, default=0, help="requests per second; default: 40%% of saturation")
    parser.add_argument("--connections", type=int, default=64, help="concurrent requests; default: 64")
    options, serve_flags = parser.parse_known_args(arguments)
    names = options.stages.split(",")
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"--stages: expected stages among {','.join(STAGES)}, found {','.join(unknown)}")
    try:
        with (
            copied_versions(options.store, 2) as (store, versions),
            tempfile.TemporaryDirectory() as folder,
            deployed(store.root, Path(folder), serve_flags) as deployment,
        ):
            rehearsal = Rehearsal(deployment, store, versions, options)
            summaries = [rehearsal.run(STAGES[name]) for name in names]
    except (ServiceError, ReplicaError, MissingProgramError) as error:
        parser.error(str(error))
    _print_table(summaries)
    failed = any(summary.failed for summary in summaries)
    print(json.dumps({"failed": failed, "stages": [dataclasses.asdict(summary) for summary in summaries]}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
