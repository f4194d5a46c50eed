"""Reports in a real Redis server: with a secret, only reports that a replica with this secret wrote count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import recollect
from recollect.service.errors import NotServedError
from recollect.service.redis_client import RedisClient
from recollect.service.store.activation_record import Canary
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.activation import Activation
from recollect.service.versions.replicas import RedisReplicas, Seen
from recollect.service.versions.reports import CanaryReport, Report, replica_name
from tests.service.http_helpers import PATIENCE_SECONDS
from tests.service.redis_server import SECRET, RedisServer, metric, needs_redis, replica, until

pytestmark = needs_redis

OTHER = "other-1-abcd"
NAMES = sorted([replica_name(), OTHER])
REFUSED = 'recollect_redis_refused_total{content="replica_report"}'


def replicas_with(redis_server: RedisServer, secret: str | None, metrics: Metrics | None = None) -> RedisReplicas:
    return RedisReplicas(RedisClient(redis_server.url, "recollect", metrics, secret))


def unreadable(name: str) -> Seen:
    return Seen(name, None, is_unreadable=True)


def report(name: str, version: str = "v5", canary: CanaryReport | None = None) -> Report:
    return Report(replica=name, state="serving", version=version, generation=2, since=None, canary=canary)


@pytest.fixture
def owner(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A user of Redis who does not know the secret."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def write(owner: redis.Redis, name: str, content: bytes) -> None:
    """Write a report and an entry of the registry without the service."""
    seconds, _ = owner.time()  # type: ignore[misc]
    owner.zadd("recollect:registry", {name: seconds})
    owner.set(f"recollect:report:{name}", content)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_reports_of_replicas_with_the_same_secret_are_read(redis_server: RedisServer, secret: str | None) -> None:
    own = report(replica_name())
    replicas_with(redis_server, secret).report(own)
    assert replicas_with(redis_server, secret).seen() == [Seen(replica_name(), own)]


def test_reports_without_the_secret_are_ignored_and_counted_and_logged_once(
    redis_server: RedisServer, owner: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics(with_redis=True)
    own, readers = report(replica_name()), replicas_with(redis_server, SECRET, metrics)
    readers.report(own)
    write(owner, OTHER, report(OTHER).model_dump_json().encode())
    for _ in range(2):
        assert readers.seen() == [
            Seen(replica_name(), own) if name == replica_name() else unreadable(name) for name in NAMES
        ]
    assert f"{REFUSED} 2.0" in metrics.exposition().decode()
    assert capsys.readouterr().out.count("replica_report_refused") == 1


def test_reports_that_a_user_of_redis_exchanged_changed_or_wrote_with_another_secret_are_ignored(
    redis_server: RedisServer, owner: redis.Redis
) -> None:
    reader, own = replicas_with(redis_server, SECRET), f"recollect:report:{replica_name()}"
    reader.report(report(replica_name()))
    sealed = owner.get(own)
    assert isinstance(sealed, bytes)
    for content in (
        sealed.replace(b'"v5"', b'"v9"'),
        sealed[32:],
        b"\0" * 32 + sealed[32:],
        sealed[:-1],
    ):
        owner.set(own, content)
        assert reader.seen() == [unreadable(replica_name())]
    write(owner, OTHER, sealed)
    owner.set(own, sealed)
    assert sorted(seen.replica for seen in reader.seen() if seen.report) == [replica_name()]
    for secret in ("the-secret-of-another-fleet", None):
        assert replicas_with(redis_server, secret).seen() == [unreadable(name) for name in NAMES]


def test_commands_with_another_secret_than_the_replicas_fail_and_name_the_setting(
    store: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--store", str(store), "--redis-url", redis_server.url, "--keep", "1")
    monkeypatch.setattr("recollect.service.versions.activation._LOST_SECONDS", 0.1)
    record = Store(store).activate("v5")
    replicas_with(redis_server, SECRET).report(report(replica_name()))
    for secret in (None, "the-secret-of-another-fleet"):
        activation = Activation(Store(store), RedisClient(redis_server.url, "recollect", secret=secret))
        with pytest.raises(NotServedError, match=r"1 of 1 replicas .*\n.*the replica has another --redis-secret"):
            activation.wait(record, PATIENCE_SECONDS)
    activation = Activation(Store(store), RedisClient(redis_server.url, "recollect", secret=SECRET))
    assert len(activation.wait(record, PATIENCE_SECONDS)) == 1
    assert recollect.main(["prune", *flags, "--redis-secret", SECRET]) == 0


def test_user_of_redis_cannot_stop_a_canary_or_pretend_that_a_replica_serves_a_version(
    store: Path, redis_server: RedisServer, owner: redis.Redis
) -> None:
    forged = CanaryReport(version="v5", generation=2, state="stopped", error="forged", stopped_by=OTHER)
    with replica(store, redis_server, "--poll-seconds", "0.05") as (server, client):
        activation = Activation(Store(store), RedisClient(redis_server.url, "recollect", secret=SECRET))
        record = activation.start_canary(Canary(version="v5", share=1.0))
        activation.wait(record, PATIENCE_SECONDS)
        write(owner, OTHER, report(OTHER, canary=forged).model_dump_json().encode())
        server.wait_for("replica_report_refused")
        refused = metric(client, REFUSED)
        until(lambda: metric(client, REFUSED) > refused)  # the replica has read the reports again
        assert client.post("/predict", json={"query": "bread"}).json()["version"] == "v5"
        assert server.events("canary_stopped") == []
        assert len(server.events("replica_report_refused")) == 1
