"""Changes of the memory over HTTP: a real server, its log, and a second replica of the same store."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import TOPICS
from tests.processes import PATIENCE_SECONDS, Server, copy_store, is_problem, metric, serving, until

WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
LIMIT = ("--writable", "--delta-keys", "40")
KEYS = f"writer {WRITER} write\nreader {READER}\n"
TEXT = "How whales sleep in the ocean"
TEXT_ROW = {"uid": "Whales", "text": TEXT}


@pytest.fixture(scope="module")
def shared_store(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_store(light_versions, tmp_path_factory.mktemp("live") / "store")


@pytest.fixture(scope="module")
def server(shared_store: Path) -> Iterator[Server]:
    with serving(shared_store, *LIMIT, keys=KEYS, key=WRITER) as server:
        yield server


@pytest.fixture(scope="module")
def replica(shared_store: Path, server: Server) -> Iterator[Server]:
    with serving(shared_store, *LIMIT, keys=KEYS, key=WRITER) as replica:
        yield replica


@pytest.fixture(scope="module")
def large(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a large live memory and a limited reader."""
    store = copy_store(light_versions, tmp_path_factory.mktemp("large") / "store")
    keys = f"writer {WRITER} write\nreader {READER} 0.01\n"
    with serving(store, "--writable", "--max-batch", "4", keys=keys, key=WRITER) as server:
        yield server


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client


def ask(client: httpx.Client, query: str = TEXT, **options: Any) -> dict[str, Any]:
    response = client.post("/predict", json={"query": query, "top_k": 50, **options})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def scores(client: httpx.Client, **options: Any) -> dict[str, float]:
    return {label["uid"]: label["score"] for label in ask(client, **options)["labels"]}


def put_label(client: httpx.Client, uid: str = "Whales", text: str = TEXT) -> int:
    response = client.post("/memory/labels", json={"labels": [{"uid": uid, "text": text}]})
    assert response.status_code == 200, response.text
    sequence: int = response.json()["sequence"]
    return sequence


def test_other_replica_answers_with_a_change_that_the_request_requires(client: httpx.Client, replica: Server) -> None:
    sequence = put_label(client)
    with httpx.Client(base_url=replica.url, headers={"X-API-Key": READER}) as other:
        answer = ask(other, min_sequence=sequence)
        assert answer["sequence"] >= sequence
        assert answer["labels"][0]["uid"] == "Whales"
        later = other.post("/predict", json={"query": TEXT, "min_sequence": sequence + 1000})
        is_problem(later, 409, "sequence_unknown")
    removed = replica.client.delete("/memory/labels/Whales")  # any replica may write
    assert removed.json()["sequence"] == sequence + 1
    assert "Whales" not in scores(client, min_sequence=sequence + 1)


def test_request_with_a_key_is_carried_out_once_and_gets_the_first_answer(
    client: httpx.Client, replica: Server
) -> None:
    rejected = {"query": TEXT, "label": "Law", "relevant": False}

    def send(url: str, method: str, path: str, key: str, **given: Any) -> httpx.Response:
        headers = {"X-API-Key": WRITER, "Idempotency-Key": key}
        return httpx.request(method, f"{url}{path}", headers=headers, timeout=30, **given)

    url, other = str(client.base_url), replica.url
    before = client.get("/memory").json()
    with ThreadPoolExecutor(4) as threads:
        at_once = [
            threads.submit(send, each, "POST", "/feedback", "f", json=rejected) for each in (url, url, other, other)
        ]
        (answer,) = {each.result().text for each in at_once}
    after = client.get("/memory").json()
    assert (after["corrections"], after["sequence"]) == (before["corrections"] + 1, before["sequence"] + 1)
    feedback = json.loads(answer)["id"]
    for each in (other, url, other):  # the second and third time, there is no such feedback any more
        removed = send(each, "DELETE", f"/feedback/{feedback}", "d")
        assert (removed.status_code, removed.json()["sequence"]) == (200, before["sequence"] + 2)
    assert send(url, "POST", "/feedback", "f", json=rejected).text == answer
    for path, body in (("/feedback", rejected | {"relevant": True}), ("/memory/labels", {"labels": [TEXT_ROW]})):
        is_problem(send(other, "POST", path, "f", json=body), 422, "idempotency_key_reused")
    for key in ("", "with blanks", "x" * 201):
        problem = is_problem(send(url, "POST", "/feedback", key, json=rejected), 422, "invalid_request")
        assert problem["detail"].startswith("Idempotency-Key: expected 1 to 200 visible ASCII characters, found")
    assert client.get("/memory").json()["sequence"] == before["sequence"] + 2


def test_integer_is_the_uid_with_its_digits(client: httpx.Client) -> None:
    client.post("/memory/labels", json={"labels": [{"uid": 2, "text": TEXT}]}).raise_for_status()
    row = {"uid": 9, "text": TEXT, "labels": [2]}
    client.post("/memory/instances", json={"instances": [row]}).raise_for_status()
    assert client.get("/memory/instances/9").json()["labels"] == ["2"]
    assert list(scores(client, allow=[2])) == ["2"]
    assert "2" not in scores(client, deny=[2])
    feedback = client.post("/feedback", json={"query": TEXT, "label": 2, "relevant": True}).raise_for_status()
    client.delete(f"/feedback/{feedback.json()['id']}").raise_for_status()
    for path in ("/memory/instances/9", "/memory/labels/2"):
        client.delete(path).raise_for_status()
    assert "2" not in scores(client)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/memory/labels", {"labels": []}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "x", "text": " "}]}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "x", "text": "\u200b\u00ad"}]}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "\ufe0f", "text": "x"}]}, 422, "invalid_request"),
        ("/memory/instances", {"instances": [{"uid": "x", "text": "\u3164", "labels": ["y"]}]}, 422, "invalid_request"),
        ("/predict", {"query": "\u2800 \ufe0f"}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "", "text": "x"}]}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "x", "text": "x"}] * 2}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": str(n), "text": "x"} for n in range(1001)]}, 422, "invalid_request"),
        ("/memory/labels", {"labels": [{"uid": "x", "text": "x" * 2_000_000}]}, 413, "too_large"),
        ("/memory/instances", {"instances": [{"uid": "x", "text": "x", "labels": []}]}, 422, "invalid_request"),
        ("/memory/instances", {"instances": [{"uid": "x", "labels": ["y"]}]}, 422, "invalid_request"),
        ("/feedback", {"query": " ", "label": "nowhere", "relevant": True}, 422, "invalid_request"),
    ],
)
def test_wrong_change_is_refused_and_changes_nothing(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    before = client.get("/memory").json()["sequence"]
    is_problem(client.post(path, json=body), status, code)
    assert client.get("/memory").json()["sequence"] == before


def test_uid_with_a_newline_is_refused_and_means_no_other_uid(client: httpx.Client) -> None:
    for path, body in (
        ("/memory/labels", {"labels": [{"uid": "Law\n", "text": TEXT}]}),
        ("/memory/instances", {"instances": [{"uid": "x\ny", "text": TEXT, "labels": ["Law"]}]}),
        ("/memory/instances", {"instances": [{"uid": "x", "text": TEXT, "labels": ["Law\n"]}], "create_labels": True}),
        ("/feedback", {"query": TEXT, "label": "Law\n", "relevant": True}),
    ):
        problem = is_problem(client.post(path, json=body), 422, "invalid_request")
        assert "the uid contains the control character '\\n'" in problem["errors"][0]["message"]
    for path in ("/memory/labels/Law%0A", "/memory/instances/Law%2F0%0A", "/feedback/feedback-1%0A"):
        is_problem(client.delete(path), 404, "not_found")
    for path in ("/labels/Law%0A", "/memory/instances/Law%2F0%0A", "/metrics%0A"):
        is_problem(client.get(path), 404, "not_found")
    assert client.get("/labels/Law").json()["uid"] == "Law"
    assert client.get("/memory/instances/Law%2F0").json()["uid"] == "Law/0"


def test_labels_that_a_change_creates_and_corrections_are_live_keys(store: Path) -> None:
    with serving(store, *LIMIT, keys=KEYS, key=WRITER) as server:
        client = server.client

        def put(labels: int) -> httpx.Response:
            instance = {"uid": "new", "text": TEXT, "labels": [f"label {n}" for n in range(labels)]}
            return client.post("/memory/instances", json={"instances": [instance], "create_labels": True})

        is_problem(put(40), 507, "memory_full")
        problem = is_problem(put(2_000), 422, "invalid_request")
        assert "found 2,001; add the labels first" in problem["detail"]
        assert client.get("/memory").json()["sequence"] == 0
        assert put(38).status_code == 200
        rejected = {"query": TEXT, "label": "label 0", "relevant": False}
        assert client.post("/feedback", json=rejected).status_code == 200
        assert client.get("/memory").json()["live_keys"] == 40
        is_problem(client.post("/feedback", json=rejected), 507, "memory_full")

        size = client.get("/memory").json()["live_bytes"]
        assert size > 40 * 4 * 384
        gauges = [f"recollect_memory_{name} " for name in ("sequence", "live_keys", "live_bytes")]
        until(lambda: [metric(client, name) for name in gauges] == [40, 40, size])
        assert client.get("/version").json()["compaction_recommended"] is False
        for label in [*TOPICS][:5]:  # more than half of the instances
            assert client.delete(f"/memory/labels/{label}").status_code == 200
        assert client.get("/version").json()["compaction_recommended"] is True
        until(lambda: len(server.events("compaction_recommended")) == 1)


def test_long_texts_are_refused_before_they_take_more_memory_than_the_limit(store: Path) -> None:
    flags = ("--writable", "--delta-mb", "1", "--max-query-bytes", "40000")
    with serving(store, *flags, keys=KEYS, key=WRITER) as server:
        client = server.client

        def put(uid: int, characters: int) -> httpx.Response:
            text = f"{uid} \N{ELECTRIC PLUG} ".ljust(characters, "a")  # 4 bytes for each character in memory
            return client.post("/memory/instances", json={"instances": [{"uid": uid, "text": text, "labels": ["Law"]}]})

        label = {"uid": "long", "text": "a" * 20_001}
        feedback = {"query": "a" * 20_001, "label": "Law", "relevant": False}
        for refused in (
            put(0, 20_001),
            client.post("/memory/labels", json={"labels": [label]}),
            client.post("/feedback", json=feedback),
            client.post("/feedback", json=feedback | {"relevant": True}),
        ):
            assert "20,001" in is_problem(refused, 422, "invalid_request")["detail"]
        assert client.get("/memory").json()["live_bytes"] == 0
        sizes = [client.get("/memory").json()["live_bytes"]]
        while (response := put(len(sizes), 20_000)).status_code == 200:
            sizes.append(client.get("/memory").json()["live_bytes"])
        assert "--delta-mb allows 1" in is_problem(response, 507, "memory_full")["detail"]
        assert sizes[-2] < client.get("/memory").json()["max_live_bytes"] == 1 << 20 <= sizes[-1]
        assert min(np.diff(sizes)) >= 80_000
        is_problem(client.post("/feedback", json=feedback | {"query": TEXT}), 507, "memory_full")
        assert client.delete("/memory/instances/1").status_code == 200


LABELS = [f"label {nth}" for nth in range(900)]


def test_explanation_of_a_long_text_with_many_labels_is_short_and_paid_for(large: Server) -> None:
    row = {"uid": "long", "text": "zebra pancake " * 1_400, "labels": LABELS, "weight": 1e6}
    large.client.post("/memory/instances", json={"instances": [row], "create_labels": True}).raise_for_status()
    query = {"query": "zebra pancake", "top_b": 5, "top_k": 1_000, "explain": True}
    answer = large.client.post("/predict", json=query)
    texts = {reason["text"] for label in answer.json()["labels"] for reason in label["because"]}
    assert max(map(len, texts)) == 501
    assert next(text for text in texts if len(text) == 501) == row["text"][:500] + "…"
    assert len(answer.content) < 2_000_000
    reader = {"X-API-Key": READER}
    assert large.client.post("/predict", json=query, headers=reader).status_code == 200
    refused = large.client.post("/predict", json={"query": "x"}, headers=reader)
    assert int(refused.headers["retry-after"]) > 100 * (len(answer.content) // 65_536)


def test_answer_over_the_limit_of_bytes_is_refused(large: Server) -> None:
    plugs = "\N{ELECTRIC PLUG}" * 500  # 4 bytes each
    rows = [{"uid": f"{nth} {plugs[:240]}", "text": f"ostrich {nth} {plugs}", "labels": LABELS} for nth in range(8)]
    large.client.post("/memory/instances", json={"instances": rows, "create_labels": True}).raise_for_status()
    query = {"query": "ostrich", "top_b": 8, "top_k": 1_000, "lambda": 1, "explain": True}
    problem = is_problem(large.client.post("/predict", json=query), 422, "invalid_request")
    assert problem["detail"].startswith("explain: expected")
    assert large.client.post("/predict", json=query | {"explain": False}).status_code == 200


def changes_answered(server: Server) -> float:
    """The number of requests to the paths of the memory that have ended, with any status."""
    return metric(server.client, 'recollect_requests_total{path="/memory"')


def put_instance(url: str, text: str, timeout: float = PATIENCE_SECONDS) -> None:
    body = {"instances": [{"uid": "drill", "text": text, "labels": ["Taxation"]}]}
    headers = {"X-API-Key": WRITER}
    httpx.post(f"{url}/memory/instances", json=body, headers=headers, timeout=timeout).raise_for_status()


def text_of(server: Server) -> str:
    return str(server.client.get("/memory/instances/drill").json()["text"])


def test_suspended_replica_does_not_carry_out_a_change_whose_client_has_gone(server: Server, replica: Server) -> None:
    answered = changes_answered(server)
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(httpx.ReadTimeout):
            put_instance(server.url, "an older text", timeout=0.5)
        put_instance(replica.url, "a newer text")
    finally:
        server.process.send_signal(signal.SIGCONT)
    until(lambda: changes_answered(server) > answered)
    sequence = put_label(server.client, "after the drill", "a label")
    ask(replica.client, min_sequence=sequence)
    assert text_of(server) == text_of(replica) == "a newer text"


def test_change_is_not_written_after_its_client_has_disconnected(store: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"""
import time
from pathlib import Path
from recollect.core.predictor import Predictor
encode = Predictor.encode
def waiting(self, queries, labels):
    if "an older text" in queries:
        Path({str(go.with_suffix(".reached"))!r}).touch()
        while not Path({str(go)!r}).exists():
            time.sleep(0.01)
    return encode(self, queries, labels)
Predictor.encode = waiting
"""
    with serving(store, *LIMIT, prelude=waits, keys=KEYS, key=WRITER) as server:
        put_instance(server.url, "a newer text")
        answered = changes_answered(server)
        body = json.dumps({"instances": [{"uid": "drill", "text": "an older text", "labels": ["Taxation"]}]}).encode()
        head = f"POST /memory/instances HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {WRITER}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with server.connect() as client:
            client.sendall(head.encode() + body)
            until(go.with_suffix(".reached").exists)
        go.touch()
        until(lambda: changes_answered(server) > answered)
        assert text_of(server) == "a newer text"


def test_change_that_is_not_written_in_time_is_refused(store: Path) -> None:
    waits = """
import time
from recollect.core.predictor import Predictor
encode = Predictor.encode
Predictor.encode = lambda self, queries, labels: time.sleep(0.6 * len(queries)) or encode(self, queries, labels)
"""
    with serving(store, *LIMIT, "--max-seconds", "0.5", prelude=waits, keys=KEYS, key=WRITER) as server:
        body = {"instances": [{"uid": "drill", "text": TEXT, "labels": ["Taxation"]}]}
        refused = server.client.post("/memory/instances", json=body)
        assert is_problem(refused, 504, "deadline_passed")
        assert server.client.get("/memory").json()["sequence"] == 0
