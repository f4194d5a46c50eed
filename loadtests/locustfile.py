"""Stages of load against a running service, and whether anything happened that should not.

    locust -f loadtests/locustfile.py --headless --host http://localhost:8080 --store STORE --stages steady,swap_storm

One user of locust's drives each stage as an open loop. Every answer is held against what its version answers. The last
line printed is JSON; the exit status is 1 after any unexpected error. A line of JSON announces each stage as it
begins: whoever runs the service then kills what the stage's name says, as `rehearsal.py` does.
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

from loadtests.arrivals import Exchange, Load, closed_loop, open_loop
from loadtests.client import Address
from loadtests.stages import NAMES, Stage, chosen
from loadtests.summary import as_json, as_table, failed, summarise
from loadtests.truth import Truth
from loadtests.workload import requests, spread, zipf
from service.errors import ServiceError
from service.store.store import Store

_TEXTS, _REQUESTS, _DRAWS, _SEED = 2_000, 200, 100_000, 7
# Between two activations, so that what was activated also answers some.
_PAUSE_SECONDS = 0.5


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    option = parser.add_argument
    option("--store", type=Path, required=True, help="bundle store of the service: its texts are asked")
    option("--queries", type=Path, help="file of queries, one a line, to ask instead")
    option("--stages", default=",".join(NAMES), help="which, in their order; all unless told")
    option("--seconds", type=float, default=20, help="how long each stage lasts; 20 unless told")
    option("--rate", type=float, default=0, help="requests a second; 40%% of saturation unless told")
    option("--connections", type=int, default=64, help="requests at once, but for overload; 64 unless told")
    option(
        "--redis-url",
        env_var="RECOLLECT_REDIS_URL",
        is_secret=True,
        help="where a swap storm activates versions; unset: in the store alone",
    )


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    """Refuse bad input before a user runs, whose faults locust would try again."""
    given: Any = environment.parsed_options
    try:
        stages = chosen(given.stages.split(","))
        Drive.test = Test(given, stages, _address(environment.host))
    except (ServiceError, ValueError, OSError) as error:
        print(f"locustfile: {error}", file=sys.stderr)
        sys.exit(2)


class Test:
    """What is asked where, and what must come of it."""

    def __init__(self, given: Any, stages: list[Stage], address: Address) -> None:
        self._given, self._stages, self._address = given, stages, address
        self._store = Store(given.store)
        current = self._store.require_current()
        storm = any(stage.name == "swap_storm" for stage in stages)
        # A storm goes between the current version and the latest other one.
        others = [version for version in self._store.versions() if version != current][-1:]
        if storm and not others:
            raise ValueError(f"{given.store}: expected two versions for a swap storm, found {current} alone")
        self._versions = [current, *others]
        bundle = self._store.open(current)
        queries = given.queries.read_text(encoding="utf-8").splitlines() if given.queries else bundle.instance_texts
        pool = requests(spread(queries, _TEXTS), spread(bundle.labels.uids, _TEXTS), _REQUESTS, _SEED)
        truth, order = Truth(self._store, self._versions, pool), zipf(len(pool), _DRAWS, _SEED)
        self._numbers = lambda nth: order[nth % len(order)]
        self._pool, self._truth = pool, truth

    def run(self, environment: Environment) -> bool:
        """Drive all stages; whether any failed."""
        saturation = self._saturation()
        summaries = []
        for stage in self._stages:
            rate = self._given.rate if self._given.rate and not stage.overloads else stage.load * saturation
            exchanges: list[Exchange] = []

            def seen(exchange: Exchange, stage: Stage = stage, exchanges: list[Exchange] = exchanges) -> None:
                exchanges.append(exchange)
                _tell_locust(environment, stage, exchange)

            print(json.dumps({"stage": stage.name, "seconds": self._given.seconds}), flush=True)
            storm: AbstractContextManager[list[str]] = contextlib.nullcontext([])
            with self._storm() if stage.name == "swap_storm" else storm as faults:
                connections = stage.connections(self._given.connections)
                unsent = open_loop(self._load(seen), rate, self._given.seconds, connections)
            summaries.append(summarise(stage, exchanges, unsent, faults, rate, self._given.seconds))
        print(as_table(summaries), file=sys.stderr)
        print(as_json(summaries), flush=True)
        return failed(summaries)

    def _saturation(self) -> float:
        """Requests answered a second when every connection is at work; this warms the service up as well."""
        answered: list[Exchange] = []
        seconds = closed_loop(self._load(answered.append), self._given.connections, min(5.0, self._given.seconds))
        return max(1.0, len(answered) / seconds)

    def _load(self, seen: Any) -> Load:
        def request(nth: int) -> tuple[str, bytes]:
            asked = self._pool[self._numbers(nth)]
            return asked.path, asked.body

        return Load(self._address, request, lambda nth, reply: self._truth.judge(self._numbers(nth), reply), seen)

    @contextlib.contextmanager
    def _storm(self) -> Iterator[list[str]]:
        """Activate the versions in turn meanwhile, as an operator does; yields what goes wrong with that."""
        settings = {"RECOLLECT_STORE": str(self._given.store), "RECOLLECT_WAIT": "true"}
        if self._given.redis_url:
            settings["RECOLLECT_REDIS_URL"] = self._given.redis_url
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


class Drive(User):
    """The one user: it drives the test and ends it."""

    test: Test

    @task
    def drive(self) -> None:
        self.environment.process_exit_code = 1  # unless all stages come to their end
        try:
            self.environment.process_exit_code = int(self.test.run(self.environment))
        finally:
            self.environment.runner.quit()


def _tell_locust(environment: Environment, stage: Stage, exchange: Exchange) -> None:
    """Put an exchange into locust's own statistics."""
    wrong = exchange.error and exchange.error not in stage.allowed
    environment.events.request.fire(
        request_type="POST",
        name=stage.name,
        response_time=1e3 * exchange.seconds,
        response_length=0,
        exception=RuntimeError(exchange.error) if wrong else None,
        context={},
    )


def _address(host: str | None) -> Address:
    url = urlsplit(host or "")
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"--host: expected http://HOST:PORT, found {host!r}")
    return Address(url.hostname, url.port or 80)
