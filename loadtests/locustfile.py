"""Send requests to a running service with Locust, and check every answer.

    locust -f loadtests/locustfile.py --headless --host http://localhost:8080 --store STORE --users 20 --run-time 1m

Each user sends requests at a constant rate: short and long queries, batches, filters and explanations. Every answer is
compared with the expected answer of its version, so versions may be activated meanwhile. A wrong answer counts as a
failure, and the exit status is 1 after any failure.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment

# Locust adds the folder of this file to the import path, but the package `loadtests` is in the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtests.expected_answers import ExpectedAnswers
from loadtests.workload import Request, make_requests, sample_texts, zipf_ranks
from recollect.service.errors import ServiceError
from recollect.service.store.store import Store

# Numbers of texts, of different requests, and of requests that are drawn from them.
_TEXTS, _REQUESTS, _DRAWS, _SEED = 2_000, 200, 100_000, 7


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    option = parser.add_argument
    option("--store", type=Path, required=True, help="bundle store of the service, whose texts are the queries")
    option("--queries", type=Path, help="file of queries, one in a line; default: texts of the store")
    option("--rate", type=float, default=5, help="requests per second of each user; default: 5")
    option("--api-key", default="", env_var="RECOLLECT_API_KEY", is_secret=True, help="API key of the requests")


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    """Compute the expected answers of the current version and of the latest other one, before the first request."""
    options: Any = environment.parsed_options
    try:
        queries = options.queries.read_text(encoding="utf-8").splitlines() if options.queries else None
        store = Store(options.store)
        current = store.require_current()
        others = [version for version in store.versions() if version != current][-1:]
        bundle = store.open(current)
        texts = sample_texts(bundle.instances.texts if queries is None else queries, _TEXTS)
        different = make_requests(texts, sample_texts(bundle.labels.uids, _TEXTS), _REQUESTS, _SEED)
        ServiceUser.requests = [different[rank] for rank in zipf_ranks(_REQUESTS, _DRAWS, _SEED)]
        ServiceUser.expected = ExpectedAnswers(options.store, [current, *others], different)
    except (ServiceError, OSError) as error:
        print(f"locustfile: {error}", file=sys.stderr)
        sys.exit(2)
    ServiceUser.wait_time = constant_throughput(options.rate)
    ServiceUser.headers = {"Content-Type": "application/json"}
    if options.api_key:
        ServiceUser.headers["X-API-Key"] = options.api_key


class ServiceUser(FastHttpUser):
    """A client of the service. All clients send the requests of one list in turn."""

    requests: Sequence[Request]
    expected: ExpectedAnswers
    headers: dict[str, str]
    numbers: Iterator[int] = itertools.count()

    @task
    def ask(self) -> None:
        request = self.requests[next(self.numbers) % len(self.requests)]
        with self.client.post(
            request.path, data=request.body, headers=self.headers, name=request.kind, catch_response=True
        ) as response:
            if not response.status_code:  # Locust reports lost requests
                return
            version = response.headers.get("X-Index-Version", "")
            if error := self.expected.judge(request, response.status_code, version, response.content or b""):
                response.failure(error)
