"""The Grafana dashboard and the recording rules, with a real Prometheus that scrapes a real replica."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from recollect.service.store.locations import open_store
from tests.deploy.helpers import DEPLOY, free_address, require_tool
from tests.service.http_helpers import PATIENCE_SECONDS, serving
from tests.service.light_stores import light_store, until_serves
from tests.service.redis_server import needs_redis, running_redis

DASHBOARD = json.loads((DEPLOY / "grafana" / "recollect.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    f"{panel['title']} {target['refId']}": str(target["expr"]) for panel in PANELS for target in panel["targets"]
} | {each["name"]: str(each["expr"]) for each in DASHBOARD["annotations"]["list"]}
# Panels without data in a service without faults, and the annotations, which show only the last minute.
OFTEN_EMPTY = (
    "Activations",
    "Errors",
    "Dropped and coalesced requests A",
    "Rate-limited requests",
    "Refused connections",
)
GRID_COLUMNS = 24


class Prometheus:
    """A Prometheus server with the configuration and the rules in deploy/, which scrapes one replica.

    Scrapes and rules run several times a second. A series needs several points before it has a rate.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self._address = free_address()
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        del config["alerting"]
        self._config = folder / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._folder = folder

    @contextlib.contextmanager
    def running(self) -> Iterator[Prometheus]:
        command = [
            require_tool("prometheus"),
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield self
        finally:
            process.kill()
            process.wait()

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the HTTP API."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"http://{self._address}/api/v1/{path}", params=parameters)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:  # it has not started yet
                    found = answer.json()
                    assert found["status"] == "success", found
                    return found["data"]
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def wait_for(self, expression: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Call `meanwhile` again and again until a query has a result."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.query(expression):
            assert time.monotonic() < deadline, expression
            meanwhile()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def prometheus(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus after a replica with Redis has answered queries and has replaced its version."""
    folder = tmp_path_factory.mktemp("prometheus")
    require_tool("prometheus")
    store = light_store(built.store, built.version, folder / "store")
    open_store(store).activate("v3")
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis(folder))
        flags = ("--poll-seconds", "0.05", "--redis-url", redis.url, "--engine-uri", "http://127.0.0.1:9")
        server = stack.enter_context(serving(store, *flags))
        client = stack.enter_context(httpx.Client(base_url=server.url))
        prometheus = stack.enter_context(Prometheus(folder, server.url.removeprefix("http://")).running())
        prometheus.wait_for('recollect_ready{job="recollect"} > 0')

        def ask() -> None:
            for query in ("a new query " + secrets.token_hex(4), "a query from the cache"):
                assert client.post("/predict", json={"query": query}).status_code == 200

        # A series has a rate after its second change.
        prometheus.wait_for('rate(recollect_cache_requests_total{outcome="hit"}[1m]) > 0', ask)
        open_store(store).activate("v5")
        until_serves(client, "v5")
        for series in (
            'recollect_swaps_total{outcome="swapped"}',
            'recollect_stage_seconds_count{stage="queue"}',
        ):
            prometheus.wait_for(f"rate({series}[1m]) > 0", ask)
        prometheus.wait_for("recollect:slow:ratio_rate3d", ask)
        yield prometheus


@needs_redis
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.slow
def test_every_query_of_the_dashboard_is_valid_and_has_data(prometheus: Prometheus, name: str) -> None:
    expression = QUERIES[name].replace("$__rate_interval", "1m").replace("$instance", ".*")
    assert "$" not in expression
    found = prometheus.query(expression)
    if not name.startswith(OFTEN_EMPTY):
        assert found


@needs_redis
@pytest.mark.slow
def test_prometheus_evaluates_all_rules_without_an_error(prometheus: Prometheus) -> None:
    prometheus.wait_for('ALERTS or up{job="recollect"}')
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert not [rule["name"] for rule in rules if rule.get("state") == "firing"]


def test_panels_fit_into_the_grid_and_do_not_overlap() -> None:
    occupied: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= GRID_COLUMNS, panel["title"]
        assert not cells & occupied, panel["title"]
        occupied |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_panel_reads_from_the_provisioned_data_source_and_has_a_description() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yml").read_text(encoding="utf-8"))["datasources"]
    variable = DASHBOARD["templating"]["list"][0]
    assert (variable["name"], variable["query"], variable["current"]["value"]) == (
        "datasource",
        source["type"],
        source["uid"],
    )
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
