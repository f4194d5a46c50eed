"""Queries that are vectors: over HTTP, in Python and in bulk, with a version that has words and a ranker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.core.errors import InputError, QueryError
from recollect.model import Model
from tests.contract.make_store import DIM, STORE
from tests.extras import needs_extra
from tests.processes import Server, copy_store, is_problem, run, serving, until, write_lines

QUERIES = ["flour and a hot oven", "a judge in court", "frost on a leaf"]
# With these options, words have no effect.
WORDLESS: dict[str, Any] = {"order": "score", "word_weight": 0.0}
SECRET = "0123456789abcdef-of-the-test"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_store(STORE, tmp_path_factory.mktemp("vectors") / "store")


@pytest.fixture(scope="module")
def model(store: Path) -> Model:
    return recollect.open(store)


@pytest.fixture(scope="module")
def vectors(model: Model) -> list[list[float]]:
    return [[float(each) for each in vector] for vector in model.predictor.encode(QUERIES)]


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    copy = copy_store(store, tmp_path_factory.mktemp("served") / "store")
    keys = f"all {SECRET} write\n"
    with serving(copy, "--writable", "--max-batch", 4, "--log-queries", 1, keys=keys, key=SECRET) as server:
        yield server


def labels(content: dict[str, Any]) -> list[tuple[str, float]]:
    return [(label["uid"], pytest.approx(label["score"], rel=1e-5)) for label in content["labels"]]


def test_answer_to_a_vector_is_that_to_its_text_without_words(model: Model, vectors: list[list[float]]) -> None:
    expected = model.answer(QUERIES, **WORDLESS, explain=True)
    found = model.answer(vectors=3 * np.array(vectors), explain=True)  # the length of a vector has no effect
    for answer, other in zip(found, expected, strict=True):
        assert labels(answer.to_dict()) == labels(other.to_dict())
        assert (answer.without_words, other.without_words) == (True, False)
        assert answer.to_dict()["without_words"] is True
        assert all(label.probability is None and label.ranked_by is None for label in answer.labels)
    assert [label.uid for label in model.predict(vector=vectors[0])] == [label.uid for label in expected[0].labels]
    (wordless,) = model.answer(vectors=vectors[:1], **WORDLESS)
    assert "without_words" not in wordless.to_dict()  # the options leave words out of the answer to a text too


def test_answer_of_a_version_without_words_says_nothing_about_them(built: Any) -> None:
    model = recollect.open(built.store)
    (found,), (expected,) = model.answer(vectors=model.predictor.encode(["the tax"])), model.answer(["the tax"])
    assert labels(found.to_dict()) == labels(expected.to_dict())
    assert "without_words" not in found.to_dict()


def test_vectors_over_http(server: Server, model: Model, vectors: list[list[float]]) -> None:
    expected = [answer.to_dict() for answer in model.answer(QUERIES, **WORDLESS)]
    one = server.client.post("/predict", json={"vector": vectors[0]})
    assert labels(one.json()) == labels(expected[0])
    assert one.json()["without_words"] is True
    again = server.client.post("/predict", json={"vector": vectors[0]})
    assert again.json() == one.json()
    assert "cache" in again.headers["server-timing"]
    several = server.client.post("/predict/batch", json={"vectors": vectors, "allow": ["bread", "law"]}).json()
    texts = server.client.post(
        "/predict/batch", json={"queries": QUERIES, "allow": ["bread", "law"], **WORDLESS}
    ).json()
    assert [labels(each) for each in several["results"]] == [labels(each) for each in texts["results"]]
    assert [labels(each) for each in several["results"]] != [labels(each) for each in expected]
    text = server.client.post("/predict", json={"query": QUERIES[0]}).json()
    assert "without_words" not in text
    assert "probability" in text["labels"][0]
    until(lambda: any(event["query"] is None and event["labels"] for event in server.events("query")))


def test_live_changes_and_corrections_apply_to_vectors(server: Server, vectors: list[list[float]]) -> None:
    def best() -> list[str]:
        answer = server.client.post("/predict", json={"vector": vectors[2], "top_k": 3}).raise_for_status().json()
        return [label["uid"] for label in answer["labels"]]

    first = best()[0]
    body = {"query": QUERIES[2], "label": first, "relevant": False}
    server.client.post("/feedback", json=body).raise_for_status()
    assert first not in best()
    new = {"uid": "ice", "text": QUERIES[2], "labels": ["wine"]}
    server.client.post("/memory/instances", json={"instances": [new]}).raise_for_status()
    assert best()[0] == "wine"


NUMBERS = [0.5] * DIM


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/predict", {}, "query: expected query or vector, found neither"),
        ("/predict", {"query": "flour", "vector": NUMBERS}, "query: expected query or vector, found both"),
        ("/predict", {"vectors": [NUMBERS]}, "vectors: unknown field"),
        (
            "/predict",
            {"vector": NUMBERS[1:]},
            "vector: expected 16 numbers, the dimension of version {version}, found 15",
        ),
        ("/predict", {"vector": [0.0] * DIM}, "vector: expected a vector that is not 0, found zeros only"),
        ("/predict", {"vector": [1e300, *NUMBERS[1:]]}, "vector: expected finite numbers in single precision, found o"),
        ("/predict", {"vector": []}, "vector: List should have at least 1 item after validation, not 0"),
        ("/predict", {"vector": ["0.5", *NUMBERS[1:]]}, "vector.0: Input should be a valid number"),
        ("/predict", {"vector": [NUMBERS]}, "vector.0: Input should be a valid number"),
        ("/predict", {"vector": None}, "vector: Input should be a valid array"),
        (
            "/predict",
            {"vector": NUMBERS, "assign": True},
            "assign: version {version} gives probabilities to texts only",
        ),
        ("/predict", {"vector": NUMBERS, "order": "probability"}, "order: version {version} gives probabilities to t"),
        ("/predict", {"vector": NUMBERS, "min_probability": 0.5}, "min_probability: version {version} gives probab"),
        ("/predict/batch", {}, "queries: expected queries or vectors, found neither"),
        ("/predict/batch", {"vectors": []}, "vectors: List should have at least 1 item after validation, not 0"),
        ("/predict/batch", {"vectors": [NUMBERS, NUMBERS[1:]]}, "vectors.1: expected 16 numbers, the dimension of"),
    ],
)
def test_wrong_vector_is_one_message(server: Server, path: str, body: dict[str, Any], detail: str) -> None:
    problem = is_problem(server.client.post(path, content=json.dumps(body), headers=JSON), 422, "invalid_request")
    assert problem["detail"].startswith(detail.format(version=server.version()))


JSON = {"Content-Type": "application/json"}


def test_too_many_vectors_and_numbers_that_json_has_not_are_refused(server: Server) -> None:
    is_problem(server.client.post("/predict/batch", json={"vectors": [NUMBERS] * 5}), 413, "batch_too_large")
    content = json.dumps({"vector": [float("nan"), *NUMBERS[1:]]})
    is_problem(server.client.post("/predict", content=content, headers=JSON), 422, "invalid_request")


def test_openapi_shows_that_one_of_both_is_required(server: Server) -> None:
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    request = schemas["PredictRequest"]
    assert request["oneOf"] == [{"required": ["query"]}, {"required": ["vector"]}]
    assert request["properties"]["vector"]["items"] == {"type": "number"}
    assert request["additionalProperties"] is False
    assert schemas["PredictBatchRequest"]["oneOf"] == [{"required": ["queries"]}, {"required": ["vectors"]}]
    assert "without_words" in schemas["PredictResponse"]["properties"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"vector": [1.0]}, "vector: expected 16 numbers, the dimension of version .*, found 1$"),
        ({"vector": [NUMBERS]}, r"found the shape \(1, 16\)"),
        ({"vector": ["a"] * DIM}, "found other values"),
        ({"vector": [float("nan")] * DIM}, "expected finite numbers in single precision"),
        ({"vector": NUMBERS, "query": "flour"}, "expected a query or a vector, found both"),
        ({}, "expected a query or a vector, found neither"),
        ({"vector": NUMBERS, "assign": True}, "assign: version .* gives probabilities to texts only"),
    ],
)
def test_wrong_vector_in_python_is_one_message(model: Model, call: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        model.predict(**call)


@pytest.mark.parametrize("suffix", [".jsonl", pytest.param(".parquet", marks=needs_extra("parquet"))])
def test_vectors_of_a_file(
    store: Path,
    model: Model,
    vectors: list[list[float]],
    tmp_path: Path,
    suffix: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = [{"id": row, "embedding": vector} for row, vector in enumerate(vectors)]
    if suffix == ".jsonl":
        path = write_lines(tmp_path / "in.jsonl", rows)
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "in.parquet"
        columns = {"id": [0, 1, 2], "embedding": pa.array(vectors, pa.list_(pa.float32(), DIM))}
        pq.write_table(pa.table(columns), path)
    recollect.predict_file(
        path, tmp_path / "out.jsonl", store=store, vector_column="embedding", columns=["id"], workers=1, top_k=4
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = model.answer(QUERIES, top_k=4, **WORDLESS)
    assert [labels(row) for row in found] == [labels(answer.to_dict()) for answer in expected]
    assert all(row["without_words"] for row in found)
    assert "--vector-column: vectors have no words" in capfd.readouterr().err


def test_wrong_vectors_of_a_file(store: Path, vectors: list[list[float]], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"v": vectors[0]}, {"v": vectors[1][1:]}, {"v": "text"}, {"w": vectors[0]}]
    path = write_lines(tmp_path / "in.jsonl", rows)
    flags: dict[str, Any] = {"store": store, "vector_column": "v", "workers": 1}
    with pytest.raises(InputError, match=r"in.jsonl: line 2: vector: expected 16 numbers, .* found 15 \(column v\)"):
        recollect.predict_file(path, tmp_path / "out.jsonl", **flags)
    recollect.predict_file(path, tmp_path / "out.jsonl", **flags, bad_rows="mark", overwrite=True)
    found = [json.loads(line).get("error") for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found[0] is None
    assert "found 15" in found[1]
    assert "found the shape ()" in found[2] or "other values" in found[2]
    assert found[3] == "expected the field v, found w; use --vector-column"
    csv = tmp_path / "in.csv"
    csv.write_text("v\n[1]\n")
    text_column = ("--text-column", "v", "--vector-column", "v")
    for arguments, message in (
        (("--input", csv, "--vector-column", "v"), "--vector-column: expected Parquet or JSON lines, which have lists"),
        (("--input", path, *text_column), "--vector-column: expected no --text-column, found both; omit one of them"),
        (("flour", "--vector-column", "v"), "--vector-column: expected --input with vectors, found one query"),
        (("--input", path, "--vector-column", "v", "--assign"), "assign: version"),
    ):
        assert message in run("predict", "--store", store, *arguments, status=2).stderr
