"""The public HTTP interface of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.http_helpers import Server, add_version, copy_store, make_first, relabel, serving

QUERY = "How doctors treat high blood pressure"
# Uids of the bundle's labels, in the order of the labels. Some uids contain characters that must be escaped in a URL.
UIDS = ["Taxation", "Medicine", "a/b//c", "q?x=1&y#z %41", "Football", "音楽", "Law", "Never seen"]


@pytest.fixture(scope="session")
def server(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = copy_store(built.store, tmp_path_factory.mktemp("http") / "store")
    add_version(store, built.version, "v1", relabel(UIDS))
    make_first(store, "v1")
    with serving(store, "--poll-seconds", "3600", RECOLLECT_MAX_BACH="3") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, headers={"Content-Type": "application/json"}) as client:
        yield client


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank"), problem
    assert problem["title"]
    assert problem["detail"]
    assert response.headers["x-request-id"]
    assert ("retry-after" in response.headers) == (status == 503)
    return problem


def test_answer_starts_with_the_version_and_its_labels_are_sorted_by_falling_score(client: httpx.Client) -> None:
    response = client.post("/predict", json={"query": QUERY})
    assert response.status_code == 200
    answer = response.json()
    assert list(answer) == ["version", "sequence", "labels"]
    assert answer["version"] == response.headers["x-index-version"] == "v1"
    assert [list(label) for label in answer["labels"]] == [["uid", "text", "score"]] * len(answer["labels"])
    scores = [label["score"] for label in answer["labels"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["labels"][0]["uid"] == "Medicine"


def test_because_lists_the_terms_of_a_score_and_their_sum_is_the_score(client: httpx.Client) -> None:
    labels = client.post("/predict", json={"query": QUERY, "explain": True, "top_k": 3}).json()["labels"]
    assert len(labels) == 3
    for label in labels:
        shares = [reason["share"] for reason in label["because"]]
        assert sum(shares) == pytest.approx(label["score"], abs=1e-6)
        assert shares == sorted(shares, reverse=True)
        assert {tuple(reason) for reason in label["because"]} == {("kind", "uid", "text", "share")}
    assert {reason["kind"] for reason in labels[0]["because"]} == {"instance", "label"}


def test_server_timing_header_lists_the_stages_of_a_request(client: httpx.Client) -> None:
    def stages() -> dict[str, float]:
        header = client.post("/predict", json={"query": "asked here alone"}).headers["server-timing"].split(", ")
        return {stage: float(spent) for stage, spent in (each.split(";dur=") for each in header)}

    computed, cached = stages(), stages()
    assert list(computed) == ["queue", "tokenize", "encode", "search", "combine"]
    assert list(cached) == ["cache"]
    assert min([*computed.values(), *cached.values()]) >= 0


@pytest.mark.parametrize("given", ["abc-123", "!~" * 64])
def test_response_repeats_the_request_id_of_the_client(client: httpx.Client, given: str) -> None:
    assert client.get("/version", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "has space", "x" * 129, "é"])
def test_response_has_a_new_request_id_if_the_client_sends_none_or_a_malformed_one(
    client: httpx.Client, given: str | None
) -> None:
    headers = {} if given is None else {"X-Request-Id": given.encode()}
    generated = client.get("/version", headers=headers).headers.get_list("x-request-id")  # type: ignore[arg-type]
    assert len(generated) == 1
    assert len(generated[0]) == 32
    assert generated[0] != given


def test_each_request_option_changes_the_answer(client: httpx.Client) -> None:
    def ask(**options: Any) -> dict[str, Any]:
        response = client.post("/predict", json={"query": QUERY, **options})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    assert len(ask(top_k=2)["labels"]) == 2
    assert [label["score"] for label in ask(**{"lambda": 0, "top_b": 1})["labels"]] == [1.0]
    assert "Never seen" not in {label["uid"] for label in ask(**{"lambda": 1})["labels"]}
    assert [label["uid"] for label in ask(allow=["Law", "nowhere"])["labels"]] == ["Law"]
    assert ask(allow=["Law", "nowhere"])["exhausted"] is True
    assert ask(allow=[])["labels"] == []
    assert "Medicine" not in {label["uid"] for label in ask(deny=["Medicine"])["labels"]}
    assert "exhausted" not in ask(deny=["Medicine"], top_k=7)
    assert all(label["score"] >= 0.2 for label in ask(threshold=0.2)["labels"])
    assert len({label["score"] for label in ask(temperature=100)["labels"]}) > 1


def test_request_with_filters_as_long_as_the_body_limit_is_answered(client: httpx.Client) -> None:
    unknown = [f"{number:06}" for number in range(99_990)]
    allowed = client.post("/predict", json={"query": QUERY, "allow": [*unknown, "Law", "Law"]})
    assert [label["uid"] for label in allowed.json()["labels"]] == ["Law"]
    denied = client.post("/predict", json={"query": QUERY, "deny": [*unknown, "Medicine"]})
    assert len(denied.json()["labels"]) == 7


def test_explanation_of_a_filtered_answer_with_too_many_terms_is_refused(built: Any) -> None:
    bounds = "from recollect.service.predictor import exhaustive; exhaustive.MAX_CHEAP_VOTES = exhaustive.MOST_KEYS = 3"
    with serving(built.store, prelude=bounds) as bounded:
        body = {"query": QUERY, "deny": ["Law"], "top_b": 1, "top_k": 7}
        assert len(httpx.post(f"{bounded.url}/predict", json=body).json()["labels"]) == 7
        refused = httpx.post(f"{bounded.url}/predict", json=body | {"explain": True})
        assert "keys that vote" in is_problem(refused, 422, "invalid_request")["detail"]


def test_one_version_answers_a_batch_and_the_answers_equal_those_of_single_requests(client: httpx.Client) -> None:
    queries = [QUERY, "x", "交響楽団がベートーヴェンを演奏する", "word " * 500]
    batch = client.post("/predict/batch", json={"queries": queries, "top_k": 4, "explain": True})
    assert list(batch.json()) == ["version", "sequence", "results"]
    assert batch.headers["x-index-version"] == batch.json()["version"]
    for query, result in zip(queries, batch.json()["results"], strict=True):
        single = client.post("/predict", json={"query": query, "top_k": 4, "explain": True}).json()
        assert result.get("truncated") == single.get("truncated")
        for found, expected in zip(result["labels"], single["labels"], strict=True):
            assert found["uid"] == expected["uid"]
            assert found["score"] == pytest.approx(expected["score"], abs=1e-5)


def test_batch_with_too_many_queries_is_refused(client: httpx.Client) -> None:
    assert client.post("/predict/batch", json={"queries": ["x"] * 64}).status_code == 200
    is_problem(client.post("/predict/batch", json={"queries": ["x"] * 65}), 413, "batch_too_large")
    is_problem(client.post("/predict/batch", json={"queries": []}), 422, "invalid_request")
    problem = is_problem(client.post("/predict/batch", json={"queries": ["x", " "]}), 422, "invalid_request")
    assert problem["errors"] == [{"field": "queries.1", "message": "the query is empty; send some words"}]


@pytest.mark.parametrize("uid", UIDS)
def test_label_path_finds_uids_that_need_escaping(client: httpx.Client, uid: str) -> None:
    response = client.get(f"/labels/{quote(uid, safe='')}")
    count = {"Never seen": 0, "Law": 6}.get(uid, 4)
    assert list(response.json()) == ["version", "uid", "text", "training_count"]
    assert (response.json()["uid"], response.json()["training_count"]) == (uid, count)


@pytest.mark.parametrize("path", ["nowhere", "", "%ED%A0%80", "%00", "a/b", "x" * 5000])
def test_unknown_label_gets_404(client: httpx.Client, path: str) -> None:
    is_problem(client.get(f"/labels/{path}"), 404, "unknown_label")


def test_version_path_describes_the_bundle_in_use(client: httpx.Client) -> None:
    about = client.get("/version").json()
    assert about["version"] == "v1"
    assert about["counts"] == {"instances": 28, "labels": 8, "pairs": 30}
    votes = {"lambda": 0.5, "temperature": 0.04, "top_b": 200, "word_weight": 0.0}
    assert about["defaults"] == {**votes, "top_k": 10, "order": "score"}
    assert about["index"]["instances"]["kind"] == "flat"
    assert about["dim"] == 384
    assert about["metrics"]["parity_worst_cosine"] >= 0.9999
    assert about["created"] <= about["since"]
    assert "files" not in about


def test_health_paths_report_live_and_ready(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    assert client.get("/health/ready").json() == {"status": "ready"}


def test_openapi_document_describes_every_error_as_a_problem(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 200
    described = client.get("/openapi.json").json()
    assert "Problem" in described["components"]["schemas"]
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    statuses = {}
    for path, methods in described["paths"].items():
        for operation in methods.values():
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "4"}
            assert all(answer["content"] == {"application/problem+json": reference} for answer in errors.values()), path
            statuses[path] = sorted(errors)
    assert statuses["/predict"] == statuses["/predict/batch"] == ["409", "413", "415", "422", "503", "504"]
    assert statuses["/labels/{uid}"] == ["404", "503"]
    assert "HTTPValidationError" not in json.dumps(described)


@pytest.mark.parametrize("query", ["\ud83d", "ok \udc00"])
def test_query_with_half_of_a_surrogate_pair_is_refused(client: httpx.Client, query: str) -> None:
    problem = is_problem(client.post("/predict", content=json.dumps({"query": query})), 422, "invalid_request")
    assert problem["detail"].startswith("body: expected JSON: ")


@pytest.mark.parametrize("query", ["", "  \n\t", "\x00\x01", "\u200b\u2060"])
def test_query_without_visible_characters_is_refused(client: httpx.Client, query: str) -> None:
    problem = is_problem(client.post("/predict", content=json.dumps({"query": query})), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == ["query"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", value) for value in (0, -1, 1_000_000, "3", 2.5, True, 10**30)]
    + [("lambda", value) for value in (-0.1, 1.1, "0.5", True, float("nan"), [0.5])]
    + [("temperature", value) for value in (0, -1, 1e9, float("nan"), float("inf"), float("-inf"), 1e-300)]
    + [("top_b", value) for value in (0, 10_001, 1.5, {})]
    + [("threshold", -0.1), ("threshold", 2), ("explain", "yes"), ("explain", 1), ("timeout_ms", 0)]
    + [("allow", "Law"), ("allow", [1]), ("deny", {"Law": 1}), ("query", 3), ("query", None), ("query", ["x"])]
    + [("lambda_", 0.5), ("topk", 3), ("", 1), ("queries", ["x"])],
)
def test_error_names_a_field_that_is_unknown_or_out_of_its_range(
    client: httpx.Client, field: str, value: object
) -> None:
    body = json.dumps({"query": QUERY, field: value})
    problem = is_problem(client.post("/predict", content=body), 422, "invalid_request")
    assert [error["field"].split(".")[0] for error in problem["errors"]] == [field]
    assert QUERY not in json.dumps(problem)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'["x"]', b"null", b"3", b'"text"', b"{", b'{"query": "x"', b'{"query": "x"} y', b"\xff\xfe", b"{}"]
    + [b'{"query": "\xff"}', b"[" * 100_000, b'{"query": ' + b"[" * 100_000, b'{"top_k": ' + b"9" * 5000 + b"}"],
)
def test_body_that_is_not_a_valid_request_is_refused(client: httpx.Client, body: bytes) -> None:
    is_problem(client.post("/predict", content=body), 422, "invalid_request")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_content_type_other_than_json_is_refused_and_the_message_names_json(
    client: httpx.Client, content_type: str
) -> None:
    body, headers = json.dumps({"query": QUERY}), {"Content-Type": content_type}
    problem = is_problem(client.post("/predict", content=body, headers=headers), 422, "invalid_request")
    assert "application/json" in problem["detail"]


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit_gets_413_and_the_connection_stays_open(client: httpx.Client, chunked: bool) -> None:
    body = b'{"query": "' + b"x" * 10_000_000 + b'"}'
    content = (body[start : start + 65_536] for start in range(0, len(body), 65_536)) if chunked else body
    is_problem(client.post("/predict", content=content), 413, "too_large")
    assert client.post("/predict", json={"query": QUERY}).status_code == 200


def test_request_whose_deadline_passed_gets_504(client: httpx.Client) -> None:
    body = {"queries": ["many words " * 60] * 64, "timeout_ms": 1}
    is_problem(client.post("/predict/batch", json=body), 504, "deadline_passed")
    assert client.post("/predict", json={"query": QUERY, "timeout_ms": 60_000}).status_code == 200


def test_wrong_method_and_unknown_path_get_problem_details(client: httpx.Client) -> None:
    refused = client.get("/predict")
    is_problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"
    is_problem(client.delete("/labels/Law"), 405, "method_not_allowed")
    is_problem(client.get("/nowhere"), 404, "not_found")
    is_problem(client.get("/predict/nowhere"), 404, "not_found")


@pytest.mark.parametrize(
    "query",
    ["поиск", "αναζήτηση", "חיפוש", "بحث", "खोज", "ค้นหา", "搜索", "검색", "検索", "ፍለጋ", "ძიება", "որոնում", "తెలుగు"]
    + ["👩‍👩‍👧‍👦", "🇫🇷", "é", "e\u0301", "𝔘𝔫𝔦", "\U000e0041x", "\ufffd", "\ue000", "a\x00b", "?", "�" * 300],
)
def test_query_in_any_script_is_answered(client: httpx.Client, query: str) -> None:
    answer = client.post("/predict", json={"query": query})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["labels"]) == 8


def test_query_longer_than_the_encoder_reads_is_marked_truncated(client: httpx.Client) -> None:
    answer = client.post("/predict", json={"query": "bread oven " * 500}).json()
    assert list(answer) == ["version", "sequence", "labels", "truncated"]
    assert answer["truncated"] is True
    assert "truncated" not in client.post("/predict", json={"query": "bread oven"}).json()


FIELDS = ["query", "queries", "top_k", "lambda", "temperature", "top_b", "allow", "deny", "threshold", "timeout_ms"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner)
)


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=JSON | st.fixed_dictionaries({"query": st.text()}, optional=dict.fromkeys(FIELDS[2:], JSON)))
def test_random_bodies_never_cause_a_server_error(client: httpx.Client, body: object) -> None:
    for path in ("/predict", "/predict/batch"):
        assert client.post(path, content=json.dumps(body)).status_code in (200, 413, 422, 504)


def test_warning_names_a_misspelled_environment_variable(server: Server) -> None:
    assert [event["name"] for event in server.events("unknown_environment_variable")] == ["RECOLLECT_MAX_BACH"]


def test_log_contains_no_query(server: Server, client: httpx.Client) -> None:
    client.post("/predict", json={"query": "zyzzyva, in private"})
    assert "zyzzyva" not in server.log()


def test_request_to_explain_too_many_keys_is_refused(client: httpx.Client) -> None:
    problem = is_problem(
        client.post("/predict", json={"query": QUERY, "explain": True, "top_b": 2_001}), 422, "invalid_request"
    )
    assert problem["detail"].startswith("explain: expected at most 2,000 keys to explain, found 1 x top_b 2,001")
    many = {"queries": [QUERY] * 11, "explain": True, "top_b": 200}
    is_problem(client.post("/predict/batch", json=many), 422, "invalid_request")
    assert client.post("/predict", json={"query": QUERY, "explain": True, "top_b": 2_000}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"query": QUERY, "allow": [1] * 10_000}),
        ("/predict", {"query": QUERY, "deny": [1] * 10_000}),
        ("/predict/batch", {"queries": [""] * 10_000}),
    ],
)
def test_validation_of_a_list_stops_at_its_first_wrong_entry(client: httpx.Client, path: str, body: Any) -> None:
    (error,) = is_problem(client.post(path, json=body), 422, "invalid_request")["errors"]
    assert error["field"].endswith(".0")


def test_problem_details_stay_small_if_a_request_has_many_errors(client: httpx.Client) -> None:
    wrong = {f"{number}" + "x" * 500: 1 for number in range(900)}
    response = client.post("/predict", json={"query": QUERY, **wrong})
    assert len(is_problem(response, 422, "invalid_request")["errors"]) == 10
    assert len(response.content) < 5_000
