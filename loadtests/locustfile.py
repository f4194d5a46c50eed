"""Send requests to a running service with Locust.

    locust -f loadtests/locustfile.py --headless --host http://localhost:8080 --store STORE --users 20 --run-time 1m

Each user sends requests at a constant rate: short and long queries, batches, filters and explanations. Versions may be
activated meanwhile. An answer whose header and body name different versions counts as a failure. The exit status is 1
after any failure.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment

# Locust adds the folder of this file to the import path, but the package `loadtests` is in the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtests.texts import sample_texts, zipf_ranks
from recollect.core.errors import ServiceError
from recollect.store.store import Store

# Numbers of texts, and of queries that are drawn from them.
_TEXTS, _DRAWS, _SEED = 2_000, 100_000, 7
# Maximum number of words in a query: a short search, one or two sentences, or a page that the encoder may truncate.
_SHORT, _MEDIUM, _LONG = 4, 40, 300
_MOST_BATCHED, _MOST_FILTERED = 16, 20


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    option = parser.add_argument
    option("--store", type=Path, required=True, help="bundle store of the service, whose texts are the queries")
    option("--queries", type=Path, help="file of queries, one in a line; default: texts of the store")
    option("--rate", type=float, default=5, help="requests per second of each user; default: 5")
    option("--api-key", default="", env_var="RECOLLECT_API_KEY", is_secret=True, help="API key of the requests")


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    try:
        given = options.queries.read_text(encoding="utf-8").splitlines() if options.queries else None
        store = Store(options.store)
        bundle = store.open(store.require_current())
        texts = sample_texts(bundle.instances.texts if given is None else given, _TEXTS)
        ServiceUser.uids = sample_texts(bundle.labels.uids, _TEXTS)
    except (ServiceError, OSError) as error:
        print(f"locustfile: {error}", file=sys.stderr)
        sys.exit(2)
    ServiceUser.texts = itertools.cycle([texts[rank] for rank in zipf_ranks(len(texts), _DRAWS, _SEED)])
    ServiceUser.wait_time = constant_throughput(options.rate)
    ServiceUser.headers = {"X-API-Key": options.api_key} if options.api_key else {}


class ServiceUser(FastHttpUser):
    """A client of the service. The number of a task is its share of the requests, in percent."""

    texts: Iterator[str]
    uids: list[str]
    headers: dict[str, str]

    @task(35)
    def short(self) -> None:
        self._ask("short", query=self._query(_SHORT))

    @task(30)
    def medium(self) -> None:
        self._ask("medium", query=self._query(_MEDIUM))

    @task(8)
    def long(self) -> None:
        words = " ".join(itertools.islice(self.texts, _LONG)).split()
        self._ask("long", query=" ".join(words[:_LONG]))

    @task(10)
    def batch(self) -> None:
        self._ask("batch", queries=[self._query(_MEDIUM) for _ in range(random.randint(2, _MOST_BATCHED))])

    @task(10)
    def filter(self) -> None:
        chosen = random.sample(self.uids, min(len(self.uids), random.randint(1, _MOST_FILTERED)))
        self._ask("filter", query=self._query(_MEDIUM), **{random.choice(["allow", "deny"]): chosen})

    @task(7)
    def explain(self) -> None:
        self._ask("explain", query=self._query(_MEDIUM), explain=True)

    def _query(self, words: int) -> str:
        return " ".join(next(self.texts).split()[:words])

    def _ask(self, name: str, **body: Any) -> None:
        path = "/predict/batch" if name == "batch" else "/predict"
        with self.client.post(path, json=body, headers=self.headers, name=name, catch_response=True) as response:
            if response.status_code == 200 and response.json()["version"] != response.headers["X-Index-Version"]:
                response.failure("header and body name different versions")
