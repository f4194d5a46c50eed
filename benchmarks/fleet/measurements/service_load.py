"""The real service under load: one replica, or two replicas behind nginx, with titles of its own memory as queries."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadtests.client import Address, Connection, Reply
from loadtests.deployment import deployed
from loadtests.load import Exchange, Load, closed_loop, open_loop
from loadtests.replica import Replica, replica
from loadtests.workload import sample_texts
from recollect.service.store.store import Store

BODIES, _CONNECTIONS, _FEW_CONNECTIONS = 512, 64, 16
# The milliseconds of a stage in the header `Server-Timing`.
_DURATION = re.compile(r"dur=([\d.]+)")
Judge = Callable[[int, Reply], str]


def _judge(number: int, reply: Reply) -> str:
    return "" if reply.status == 200 else str(reply.status)


@dataclass(frozen=True)
class Served:
    """A running service.

    Attributes:
        address: Its address; that of nginx for two replicas.
        replicas: The replicas.
        nginx: Process of nginx; None for one replica.
        bodies: Bodies of requests to `/predict`.
    """

    address: Address
    replicas: list[Replica]
    nginx: int | None
    bodies: list[bytes]

    def closed_loop(self, clients: int, seconds: float, bodies: int = BODIES) -> tuple[list[Exchange], float]:
        """Run a closed loop with this many different bodies; return its exchanges and its duration."""
        exchanges: list[Exchange] = []
        return exchanges, closed_loop(self._load(exchanges, bodies), clients, seconds)

    def open_loop(self, rate: float, seconds: float, seed: int = 0) -> list[Exchange]:
        """Run an open loop with random times between the requests; return its exchanges."""
        exchanges: list[Exchange] = []
        unsent = open_loop(self._load(exchanges, BODIES), rate, seconds, _CONNECTIONS, seed)
        return exchanges + [Exchange(-1, 0, 0, 0, "", "never sent")] * unsent

    def other_latencies_ms(self, rate: float, seconds: float) -> list[float]:
        """Run an open loop; return its latencies without the stages that the answers name: queue and computation.

        The load has few connections, because the first request of each one also opens it.
        """
        exchanges: list[Exchange] = []
        stages_ms: dict[int, float] = {}

        def judge(number: int, reply: Reply) -> str:
            stages_ms[number] = sum(map(float, _DURATION.findall(reply.headers.get("server-timing", ""))))
            return _judge(number, reply)

        open_loop(self._load(exchanges, BODIES, judge), rate, seconds, _FEW_CONNECTIONS, seed=0)
        return [1e3 * each.seconds - stages_ms[each.number] for each in exchanges if each.status == 200]

    def statuses(self) -> Counter[int]:
        """The number of answers that the replicas have given so far to requests to `/predict`, by status.

        If a replica refuses a request, nginx sends it to the other one, so a request can have two answers.
        """
        counts: Counter[int] = Counter()
        for each in self.replicas:
            for sample in metric_samples(metrics_of(each)):
                if sample.name == "recollect_requests_total" and sample.labels["path"] == "/predict":
                    counts[int(sample.labels["status"])] += int(sample.value)
        return counts

    def _load(self, exchanges: list[Exchange], bodies: int, judge: Judge = _judge) -> Load:
        def request(number: int) -> tuple[str, bytes]:
            return "/predict", self.bodies[number % min(bodies, len(self.bodies))]

        return Load(self.address, request, judge, exchanges.append)


def metrics_of(replica: Replica) -> str:
    """The text of `/metrics`.

    Raises:
        OSError, LostRequestError: If the replica does not answer.
    """
    with contextlib.closing(Connection(replica.address)) as connection:
        return connection.get("/metrics").body.decode()


def metric_samples(metrics: str) -> Iterator[Sample]:
    """The samples in the text of `/metrics`."""
    return (sample for family in text_string_to_metric_families(metrics) for sample in family.samples)


@contextlib.contextmanager
def served(store: Path, replicas: int, *flags: str) -> Iterator[Served]:
    """Serve a store with one thread a replica while the `with` block runs.

    Args:
        store: The store.
        replicas: 1, or 2 for two replicas behind nginx.
        flags: Other flags of `recollect serve`.

    Raises:
        ServiceError: If the store has no version.
        ReplicaError, MissingProgramError: If a program does not start.
    """
    opened = Store(store)
    texts = sample_texts(opened.open(opened.require_current()).instances.texts, BODIES)
    bodies = [json.dumps({"query": text}).encode() for text in texts]
    given = ["--threads", "1", *flags]
    with tempfile.TemporaryDirectory() as folder:
        if replicas == 1:
            with replica(store, given) as one:
                yield Served(one.address, [one], None, bodies)
        else:
            with deployed(store, Path(folder), given) as two:
                yield Served(two.address, two.replicas, two.nginx.process, bodies)
