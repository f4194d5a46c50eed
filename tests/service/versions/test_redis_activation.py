"""Activations with replicas that share a real Redis server: announcements, reports, and hostile content of Redis."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import recollect
from recollect.service.errors import NotServedError, RedisError
from recollect.service.redis_client import RedisClient
from recollect.service.store.store import Store
from recollect.service.versions.activation import Activation
from recollect.service.versions.replicas import RedisReplicas
from recollect.service.versions.reports import Report, replica_name
from tests.service.http_helpers import PATIENCE_SECONDS, add_version, answers_with, copy_store, serving
from tests.service.light_stores import TOP_K, until_serves
from tests.service.redis_server import NEVER_POLLS, SECRET, RedisServer, metric, needs_redis, replica, until
from tests.service.store.servers import WebServer

pytestmark = needs_redis

POLLS = ("--poll-seconds", "0.05")
SECRET_FLAGS = ("--redis-secret", SECRET)


def shared_client(redis_server: RedisServer) -> RedisClient:
    """The client of a command, which knows the secret of the replicas."""
    return RedisClient(redis_server.url, "recollect", secret=SECRET)


def activated(store: Path, redis_server: RedisServer, *command: str) -> int:
    return recollect.main([*command, "--store", str(store), "--redis-url", redis_server.url, *SECRET_FLAGS, "--wait"])


def copy_desired_state(store: Path, to: Path) -> None:
    """Copy the activation record as an operator does it for a replica with its own copy of the store."""
    shutil.copy(store / "ACTIVATION", to / "ACTIVATION.new")
    (to / "ACTIVATION.new").replace(to / "ACTIVATION")


def test_activation_reaches_all_replicas_at_once_through_an_announcement(
    store: Path, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        replica(store, redis_server, *NEVER_POLLS) as (_, first),
        replica(store, redis_server, *NEVER_POLLS) as (_, second),
    ):
        until(lambda: redis_server.client().pubsub_numsub("recollect:generation")[0][1] == 2)
        assert activated(store, redis_server, "activate", "v5") == 0
        assert capsys.readouterr().out == "v5\n"
        for client in (first, second):
            answer = client.post("/predict", json={"query": "bread"}).json()
            assert (answer["version"], len(answer["labels"])) == ("v5", TOP_K["v5"])
        assert activated(store, redis_server, "rollback") == 0
        assert {client.get("/version").json()["version"] for client in (first, second)} == {"v3"}
        assert metric(first, 'recollect_generation{source="served"}') == 3
        assert metric(first, 'recollect_generation{source="store"}') == 3
        assert metric(first, 'recollect_replica_state{state="serving"}') == 1
        assert metric(first, 'recollect_replica_state{state="opening"}') == 0


def test_replica_with_its_own_copy_of_the_store_keeps_its_version_until_its_copy_names_the_new_one(
    store: Path, redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = copy_store(store, tmp_path / "elsewhere")
    shorter = "from recollect.service.versions import announcements\nannouncements._DIFFER_SECONDS = 0.2"
    with (
        replica(store, redis_server, *POLLS) as (_, near),
        replica(elsewhere, redis_server, *POLLS, prelude=shorter) as (far_server, far),
    ):
        assert activated(store, redis_server, "activate", "v5", "--wait-seconds", "0.5") == 1
        assert "serves v3: it has not opened the new version yet (generation 1)" in capsys.readouterr().err
        until_serves(near, "v5")
        differ = far_server.wait_for("generations_differ")
        assert (differ["redis"], differ["store"]) == (2, 1)
        assert metric(far, 'recollect_generation{source="redis"}') == 2
        assert metric(far, 'recollect_generation{source="store"}') == 1
        assert (near.get("/version").json()["version"], far.get("/version").json()["version"]) == ("v5", "v3")
        assert Store(elsewhere).current() == "v3"
        copy_desired_state(store, elsewhere)
        until_serves(far, "v5")
        assert near.get("/version").json()["version"] == "v5"


def test_activation_error_names_the_replica_whose_store_lacks_the_version(
    store: Path, redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = copy_store(store, tmp_path / "elsewhere")
    with replica(store, redis_server, *POLLS) as (_, near), replica(elsewhere, redis_server, *POLLS) as (_, far):
        add_version(store, "v3", "v7", answers_with(7))
        assert recollect.main(["activate", "v7", "--store", str(store)]) == 0
        copy_desired_state(store, elsewhere)
        record = Store(store).activation()
        assert record is not None
        activation = Activation(Store(store), shared_client(redis_server))
        with pytest.raises(NotServedError, match=r"1 of 2 replicas do not serve it:\n  .* serves v3: .*found no 'v7'"):
            activation.wait(record, PATIENCE_SECONDS)
        assert (near.get("/version").json()["version"], far.get("/version").json()["version"]) == ("v7", "v3")


def test_replica_announces_its_generation_again_if_redis_lost_it_or_has_an_earlier_one(
    store: Path, redis_server: RedisServer
) -> None:
    with replica(store, redis_server, *POLLS), redis_server.client() as redis_client:
        until(lambda: redis_client.get("recollect:generation") == "1")
        for wrong in (None, "0", "v5", "-1", "9" * 100, "\xff"):
            redis_client.delete("recollect:generation")
            if wrong is not None:
                redis_client.set("recollect:generation", wrong)
            until(lambda: redis_client.get("recollect:generation") == "1")


def put_list(client: Any, key: str) -> None:
    client.pipeline().delete(key).lpush(key, "v5").execute()


# Each function writes hostile or old content to Redis. `name` is the name of a replica that runs.
HOSTILE: dict[str, Callable[[Any, str], Any]] = {
    "old version": lambda client, name: client.set("recollect:current", "v5"),
    "later generation": lambda client, name: client.set("recollect:generation", 10**12),
    "generation is a list": lambda client, name: put_list(client, "recollect:generation"),
    "message": lambda client, name: client.publish("recollect:generation", b"\xff" * 1000),
    "report is a list": lambda client, name: put_list(client, f"recollect:report:{name}"),
    "report without a code": lambda client, name: client.set(
        f"recollect:report:{name}",
        f'{{"replica":"{name}","state":"serving","version":"v5","generation":2,"since":null}}',
    ),
    "deep report": lambda client, name: client.set(f"recollect:report:{name}", "[" * 100_000),
    "registry is a string": lambda client, name: client.set("recollect:registry", "x"),
    "names": lambda client, name: client.zadd(
        "recollect:registry", {b"\xff": 1e18, "\x1b[2J": float("inf"), "a" * 10_000: 1, "../x": 2, "late": float("inf")}
    ),
    "old registry": lambda client, name: client.sadd("recollect:replicas", "x"),
}


def test_hostile_content_of_redis_never_changes_the_version_or_ends_a_replica(
    store: Path, redis_server: RedisServer
) -> None:
    with replica(store, redis_server, *POLLS) as (server, client), redis_server.client() as redis_client:
        (name,) = until(lambda: redis_client.zrange("recollect:registry", 0, -1))
        activation = Activation(Store(store), shared_client(redis_server))
        for write in HOSTILE.values():
            until(lambda: redis_client.exists(f"recollect:report:{name}"))
            write(redis_client, name)
            with contextlib.suppress(RedisError):
                for seen in activation.replicas.seen():
                    assert seen.replica == name
            until(lambda: metric(client, 'recollect_generation{source="served"}') == 1)
            assert client.post("/predict", json={"query": "bread"}).json()["version"] == "v3"
            redis_client.flushall()
        record = activation.activate("v5")
        assert len(activation.wait(record, PATIENCE_SECONDS, 1)) == 1
        assert "Traceback" not in server.log()
        assert len(server.events("bundle_swapped")) == 1


@pytest.mark.parametrize("name", ["registry is a string", "report is a list", "deep report"])
def test_wait_does_not_succeed_while_the_reports_in_redis_are_damaged(
    store: Path, redis_server: RedisServer, name: str
) -> None:
    client = redis_server.client()
    replicas = RedisReplicas(shared_client(redis_server))
    activation = Activation(Store(store), shared_client(redis_server))
    record = activation.activate("v5")
    replicas.report(
        Report(replica=replica_name(), state="serving", version="v5", generation=record.generation, since=record.at)
    )
    assert len(activation.wait(record, PATIENCE_SECONDS)) == 1
    HOSTILE[name](client, replica_name())
    with pytest.raises((NotServedError, RedisError)):
        activation.wait(record, 0.3)


def test_time_of_a_replica_does_not_matter_for_its_report(
    store: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = RedisReplicas(shared_client(redis_server))
    for shift in (-86_400.0, 86_400.0):
        now = time.time
        monkeypatch.setattr("time.time", lambda now=now, shift=shift: now() + shift)
        replicas.report(Report(replica=replica_name(), state="serving", version="v3", since=None))
        assert [seen.replica for seen in replicas.seen() if seen.report] == [replica_name()]
    replicas.leave()
    assert replicas.seen() == []


def test_replica_starts_and_swaps_with_a_store_on_a_web_server_that_cannot_list_folders(
    store: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    web = WebServer(store)
    flags = (*POLLS, "--bundle-cache", str(tmp_path / "cache"))
    with web.running(), serving(web.url, *flags, RECOLLECT_REDIS_URL=redis_server.url) as server:
        assert httpx.get(f"{server.url}/version").json()["version"] == "v3"
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"
