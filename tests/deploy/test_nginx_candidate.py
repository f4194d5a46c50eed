"""Runs a real nginx with the canary and the shadow of docs/appendix-operating.md, in front of real replicas."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from recollect.store.store import Store
from tests.deploy.helpers import DEPLOY, free_address, run_nginx, write_nginx_conf
from tests.processes import PATIENCE_SECONDS, Server, metric, serving, until
from tests.service.stores import Activation, until_serves

RUNBOOK = (DEPLOY.parent / "docs" / "appendix-operating.md").read_text(encoding="utf-8")
CURRENT, CANDIDATE = "v3", "v5"


def block(name: str, place: str) -> str:
    """A block of nginx's configuration in the runbook."""
    (found,) = re.findall(rf"<!-- nginx {name}, in {place} -->\n```nginx\n(.*?)```", RUNBOOK, re.DOTALL)
    return str(found).replace("VERSION", CANDIDATE)


@contextlib.contextmanager
def nginx_with(
    name: str, folder: Path, server: Server, clients_choose: bool = False, **replaced: str
) -> Iterator[httpx.Client]:
    """Run nginx with deploy/nginx.conf and the blocks of the runbook with this name, of which some texts are replaced.

    Args:
        clients_choose: Whether clients may name a version, as the runbook says.
    """
    listen, address = free_address(), server.url.removeprefix("http://")
    conf = write_nginx_conf(folder, listen, (address, address))
    in_http = block(name, "http")
    for old, new in replaced.items():
        assert old in in_http
        in_http = in_http.replace(old, new)
    text = conf.read_text(encoding="utf-8")
    text = text.replace("    upstream replicas {", f"{in_http}\n    upstream replicas {{", 1)
    text = text.replace("        location / {", f"{block(name, 'server')}\n        location / {{", 1)
    if clients_choose:
        (line,) = re.findall(r"`(proxy_set_header X-Index-Version \S+;)`", RUNBOOK)
        removed = 'proxy_set_header X-Index-Version "";'
        assert removed in text
        text = text.replace(removed, line)
    conf.write_text(text, encoding="utf-8")
    with run_nginx(folder, conf, listen), httpx.Client(base_url=f"http://{listen}", timeout=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store, "--poll-seconds", "0.05", "--cache-mb", "0") as server:
        activation = Activation(Store(store), None)
        activation.wait(activation.activate(CANDIDATE, candidate=True), PATIENCE_SECONDS)
        yield server


def ask(client: httpx.Client, number: int = 0, **headers: str) -> str:
    answer = client.post("/predict", json={"query": f"bread {number}"}, headers=headers)
    assert answer.status_code == 200, answer.text
    version: str = answer.json()["version"]
    assert answer.headers["x-index-version"] == version
    return version


def answered(server: Server, version: str) -> float:
    """The number of requests that a version has answered."""
    return metric(server.client, f'recollect_version_requests_total{{outcome="answered",version="{version}"}}')


def test_canary_answers_its_share_of_the_clients_and_a_request_may_name_a_version(
    server: Server, store: Path, tmp_path: Path
) -> None:
    # All clients of this test have one address, so the share is one of the requests.
    share = {"$remote_addr": "$request_id", "5%": "50%"}
    with nginx_with("canary", tmp_path, server, clients_choose=True, **share) as client:
        versions = Counter(ask(client, number) for number in range(100))
        assert min(versions[CURRENT], versions[CANDIDATE]) >= 25
        assert {ask(client, number, **{"X-Index-Version": CURRENT}) for number in range(20)} == {CURRENT}
        assert client.post("/predict", json={"query": ""}).json()["code"] == "invalid_request"
        assert client.post("/predict", json={"query": "x"}, headers={"X-Index-Version": "v9"}).status_code == 409
        Store(store).rollback()  # removes the candidate
        server.wait_for("candidate_ended")
        assert {ask(client, number) for number in range(20)} == {CURRENT}


def test_canary_stays_with_the_same_clients(server: Server, tmp_path: Path) -> None:
    with nginx_with("canary", tmp_path, server, **{"5%": "50%"}) as client:
        assert len({ask(client, number) for number in range(20)}) == 1
        # Without the line of the runbook, clients do not choose the version.
        assert {ask(client, number, **{"X-Index-Version": CANDIDATE}) for number in range(20)} == {CURRENT}


def test_clients_get_the_answers_of_the_current_version_while_the_shadow_gets_copies(
    server: Server, store: Path, tmp_path: Path
) -> None:
    with nginx_with("shadow", tmp_path, server, **{"10%": "50%"}) as client:
        assert {ask(client, number) for number in range(60)} == {CURRENT}
        until(lambda: answered(server, CANDIDATE) >= 10)
        assert answered(server, CURRENT) == 60
        assert answered(server, CANDIDATE) <= 50
        assert client.get("/shadow").status_code == 404
        Store(store).activate(CANDIDATE)
        until_serves(server.client, CANDIDATE)
        assert ask(client) == CANDIDATE
