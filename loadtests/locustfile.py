"""Send the stages of a load test to a running service, and check every answer.

    locust -f loadtests/locustfile.py --headless --host http://localhost:8080 --store STORE --stages steady,swap_storm

One locust user runs each stage as an open loop. Every answer is compared with the expected answer of its version. The
last line of the output is JSON. The exit status is 1 after any unexpected error. When a stage begins, a line of JSON
names it, so that another program can cause the fault of that stage. `rehearsal.py` is such a program.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from locust import User, events, task
from locust.env import Environment

# Locust adds the folder of this file to the import path, but the package `loadtests` is in the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtests.client import Address, Reply
from loadtests.expected_answers import ExpectedAnswers
from loadtests.load import Exchange, Load, closed_loop, open_loop
from loadtests.stages import STAGE_NAMES, Stage, stages_by_name
from loadtests.summary import any_failed, as_json, as_table, summarise
from loadtests.workload import make_requests, sample_texts, zipf_ranks
from recollect.service.errors import ServiceError
from recollect.service.store.store import Store

_TEXTS, _REQUESTS, _DRAWS, _SEED = 2_000, 200, 100_000, 7
# Pause between two activations, so that each version answers some requests.
_PAUSE_SECONDS = 0.5


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    option = parser.add_argument
    option("--store", type=Path, required=True, help="bundle store of the service, whose texts are the queries")
    option("--queries", type=Path, help="file of queries, one in a line; default: texts of the store")
    option("--stages", default=",".join(STAGE_NAMES), help="stages to run, in this order; default: all")
    option("--seconds", type=float, default=20, help="duration of each stage; default: 20")
    option("--rate", type=float, default=0, help="requests per second; default: 40%% of saturation")
    option("--connections", type=int, default=64, help="concurrent requests, except in overload; default: 64")
    option(
        "--redis-url",
        env_var="RECOLLECT_REDIS_URL",
        is_secret=True,
        help="Redis in which a swap storm activates versions; default: activate in the store only. A swap storm reads "
        "RECOLLECT_REDIS_SECRET, if the service has a secret",
    )


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    """Reject wrong options before the locust user starts, because locust would repeat a user that fails."""
    options: Any = environment.parsed_options
    try:
        stages = stages_by_name(options.stages.split(","))
        StageUser.test = LoadTest(options, stages, _address(environment.host))
    except (ServiceError, ValueError, OSError) as error:
        print(f"locustfile: {error}", file=sys.stderr)
        sys.exit(2)


class LoadTest:
    """The stages, their requests and the expected answers."""

    def __init__(self, options: Any, stages: list[Stage], address: Address) -> None:
        self._options, self._stages, self._address = options, stages, address
        self._store = Store(options.store)
        current = self._store.require_current()
        storm = any(stage.name == "swap_storm" for stage in stages)
        # A swap storm alternates between the current version and the latest other version.
        others = [version for version in self._store.versions() if version != current][-1:]
        if storm and not others:
            raise ValueError(f"{options.store}: expected two versions for a swap storm, found only {current}")
        self._versions = [current, *others]
        bundle = self._store.open(current)
        queries = (
            options.queries.read_text(encoding="utf-8").splitlines() if options.queries else bundle.instances.texts
        )
        texts, uids = sample_texts(queries, _TEXTS), sample_texts(bundle.labels.uids, _TEXTS)
        self._pool = make_requests(texts, uids, _REQUESTS, _SEED)
        self._expected = ExpectedAnswers(self._store, self._versions, self._pool)
        ranks = zipf_ranks(len(self._pool), _DRAWS, _SEED)
        self._rank = lambda number: ranks[number % len(ranks)]

    def run(self, environment: Environment) -> bool:
        """Run all stages, and return whether any stage failed."""
        saturation = self._saturation()
        summaries = []
        for stage in self._stages:
            rate = self._options.rate if self._options.rate and not stage.overloads else stage.load * saturation
            exchanges: list[Exchange] = []

            def record(exchange: Exchange, stage: Stage = stage, exchanges: list[Exchange] = exchanges) -> None:
                exchanges.append(exchange)
                _report_to_locust(environment, stage, exchange)

            print(json.dumps({"stage": stage.name, "seconds": self._options.seconds}), flush=True)
            storm: AbstractContextManager[list[str]] = contextlib.nullcontext([])
            with self._storm() if stage.name == "swap_storm" else storm as faults:
                connections = stage.connections(self._options.connections)
                unsent = open_loop(self._load(record), rate, self._options.seconds, connections)
            summaries.append(summarise(stage, exchanges, unsent, faults, rate, self._options.seconds))
        print(as_table(summaries), file=sys.stderr)
        print(as_json(summaries), flush=True)
        return any_failed(summaries)

    def _saturation(self) -> float:
        """Measure the answered requests per second when all connections are busy. This also warms up the service."""
        answered: list[Exchange] = []
        seconds = closed_loop(self._load(answered.append), self._options.connections, min(5.0, self._options.seconds))
        return max(1.0, len(answered) / seconds)

    def _load(self, record: Any) -> Load:
        def request(number: int) -> tuple[str, bytes]:
            chosen = self._pool[self._rank(number)]
            return chosen.path, chosen.body

        def judge(number: int, reply: Reply) -> str:
            return self._expected.judge(self._rank(number), reply)

        return Load(self._address, request, judge, record)

    @contextlib.contextmanager
    def _storm(self) -> Iterator[list[str]]:
        """Activate the versions in turn with `recollect activate` while the `with` block runs; yield all failures."""
        settings = {"RECOLLECT_STORE": str(self._options.store), "RECOLLECT_WAIT": "true"}
        if self._options.redis_url:
            settings["RECOLLECT_REDIS_URL"] = self._options.redis_url
        ended = threading.Event()
        faults: list[str] = []

        def activate() -> None:
            for version in itertools.cycle(reversed(self._versions)):
                if ended.wait(_PAUSE_SECONDS):
                    return
                command = [sys.executable, "-m", "recollect", "activate", version]
                done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
                if done.returncode:
                    faults.append(f"activate: {done.stderr.strip()}")

        storm = threading.Thread(target=activate)
        storm.start()
        try:
            yield faults
        finally:
            ended.set()
            storm.join()


class StageUser(User):
    """The only locust user. It runs all stages and then ends the test."""

    test: LoadTest

    @task
    def run_stages(self) -> None:
        self.environment.process_exit_code = 1  # the exit status if a stage ends with an exception
        try:
            self.environment.process_exit_code = int(self.test.run(self.environment))
        finally:
            self.environment.runner.quit()


def _report_to_locust(environment: Environment, stage: Stage, exchange: Exchange) -> None:
    """Add an exchange to locust's statistics."""
    unexpected = exchange.error and exchange.error not in stage.allowed
    environment.events.request.fire(
        request_type="POST",
        name=stage.name,
        response_time=1e3 * exchange.seconds,
        response_length=0,
        exception=RuntimeError(exchange.error) if unexpected else None,
        context={},
    )


def _address(host: str | None) -> Address:
    url = urlsplit(host or "")
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"--host: expected http://HOST:PORT, found {host!r}")
    return Address(url.hostname, url.port or 80)
