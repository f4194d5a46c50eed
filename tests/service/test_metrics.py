"""Metrics in Prometheus's format, traces with OpenTelemetry, and logs of requests and queries."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import web
from tests.processes import free_port, serving, until

QUERY = {"query": "bread"}


def samples(client: httpx.Client) -> dict[str, float]:
    """All metric values by name and labels, parsed with Prometheus's own parser."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_requests_are_counted_by_path_and_status(store: Path) -> None:
    with serving(store) as server:
        for body in (QUERY, {}):
            server.client.post("/predict", json=body)
        server.client.post("/predict/batch", json={"queries": ["a", "b", "c"]})
        for path in ("/labels/nowhere", "/wp-login.php", "/x"):
            server.client.get(path)
        found = samples(server.client)
    counted = {name: value for name, value in found.items() if name.startswith("recollect_requests_total")}
    assert counted == {
        "recollect_requests_total{path=/predict,status=200}": 1,
        "recollect_requests_total{path=/predict,status=422}": 1,
        "recollect_requests_total{path=/predict/batch,status=200}": 1,
        "recollect_requests_total{path=/labels/{uid},status=404}": 1,
        "recollect_requests_total{path=other,status=404}": 2,
    }
    assert found["recollect_request_seconds_count{path=/predict}"] == 2
    assert found["recollect_batch_queries_sum"] == 4
    for stage in ("queue", "tokenize", "encode", "search", "combine"):
        assert found[f"recollect_stage_seconds_count{{stage={stage}}}"] == 2
    assert found["recollect_queue_queries"] == 0
    assert "recollect_redis_up" not in found
    assert not {"recollect_engine_up", "recollect_encoder_up"} & found.keys()


def test_queries_and_requests_are_logged_if_the_settings_say_so(store: Path) -> None:
    with serving(store, "--log-queries", "1", "--access-log") as server:
        answer = httpx.post(f"{server.url}/predict", json=QUERY, headers={"X-Request-Id": "r-1"}).json()
        logged = server.wait_for("query")
        assert (logged["query"], logged["version"], logged["request_id"]) == ("bread", "v3", "r-1")
        assert logged["labels"] == {label["uid"]: label["score"] for label in answer["labels"]}
        logged = server.wait_for("request")
        assert (logged["method"], logged["path"], logged["status"]) == ("POST", "/predict", 200)
        assert (logged["request_id"], logged["client"], logged["key"]) == ("r-1", "127.0.0.1", None)


@contextlib.contextmanager
def collector(at: int = 0) -> Iterator[tuple[str, list[bytes]]]:
    """A real HTTP server that receives traces, on a free port by default.

    Yield its URL, and the list of the bodies that it has received.
    """
    received: list[bytes] = []

    class Handler(web.Handler):
        def do_POST(self) -> None:  # noqa: N802
            received.append(self.body())
            self.answer(200)

    with web.answering(Handler, at) as port:
        yield f"http://127.0.0.1:{port}", received


def spans_in(received: list[bytes]) -> list[Any]:
    """The spans that a collector has received."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        span
        for body in received
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_requests_and_stages_are_traced_if_a_collector_is_configured(store: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    with collector() as (url, received):
        caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        with serving(store, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_SCHEDULE_DELAY="50") as server:
            httpx.post(f"{server.url}/predict", json=QUERY, headers=caller).raise_for_status()
            httpx.get(f"{server.url}/health/live").raise_for_status()
            until(lambda: len(spans_in(received)) >= 6)
        spans = spans_in(received)
    (request,) = [span for span in spans if "predict" in span.name]
    assert request.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    stages = [span for span in spans if span is not request]
    assert [span.name for span in stages] == ["queue", "tokenize", "encode", "search", "combine"]
    assert {span.parent_span_id for span in stages} == {request.span_id}
    assert all(
        before.end_time_unix_nano == after.start_time_unix_nano
        for before, after in zip(stages[:-1], stages[1:], strict=True)
    )


def test_traces_contain_nothing_that_a_client_typed(store: Path) -> None:
    key, headers = "front-0123456789abcdef", {"User-Agent": "private-agent", "X-Forwarded-For": "10.1.2.3"}
    requests = {"GET /labels", "GET /labels/{uid}", "POST /predict", "GET other", "DELETE /memory", "GET /versions"}
    flags, often = ("--docs", "key"), {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    with (
        collector() as (url, received),
        serving(store, *flags, keys=f"front {key}\n", key=key, OTEL_EXPORTER_OTLP_ENDPOINT=url, **often) as server,
    ):
        server.client.get("/labels", params={"search": "private illness"}, headers=headers)
        server.client.get("/labels/private-uid")
        server.client.post("/predict", params={"api_key": key}, json={"query": "private question"})
        server.client.get(f"/private-path/{key}")
        server.client.delete("/memory/instances/private-uid")
        server.client.get("/versions", params={"why": "private reason"})
        until(lambda: requests <= {span.name for span in spans_in(received)})
        server.process.terminate()
        server.process.wait()
        sent = b"".join(received)
    assert b"private" not in sent
    assert key.encode() not in sent
    assert b"10.1.2.3" not in sent


def test_collector_that_does_not_answer_is_logged_once_and_again_when_it_answers(store: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    port, often = free_port(), {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}
    with serving(store, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", **often) as server:

        def ask_until(event: str) -> None:
            until(lambda: server.ask("bread").status_code == 200 and server.events(event))

        ask_until("collector_down")
        for _ in range(10):
            server.ask("bread")
            time.sleep(0.1)  # several exports fail
        with collector(port):
            ask_until("collector_up")
            lines = server.log().rpartition("\n")[0].splitlines()
    said = [json.loads(line)["event"] for line in lines if "collector" in line or "export" in line.lower()]
    changes = itertools.cycle(["collector_down", "collector_up"])  # on a busy machine, there may be more than two
    assert said == [*itertools.islice(changes, len(said))]
