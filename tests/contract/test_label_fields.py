"""Fields of labels through every door: the same names and fields, and the answers that `allow` gives for a filter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import recollect
from tests.contract.make_store import TOPICS
from tests.contract.matching import differences
from tests.contract.servers import serving
from tests.contract.test_golden import QUERIES, as_flags, as_keywords
from tests.extras import is_present
from tests.processes import copy_store, run, run_json, write_lines

FIELDS: dict[str, dict[str, Any]] = {
    "bread": {"name": "Bread", "names": {"de": "Brot"}, "groups": ["food", "baked"], "notation": "664.7"},
    "cheese": {"names": {"de": "Käse"}, "groups": ["food"], "parents": ["bread"]},
    "wine": {"groups": ["drink"], "parents": ["cheese"], "vintage": {"first": 1855}, "year": 1855.0},
    "tennis": {"name": "Tennis", "groups": ["sport"], "year": 1873},
}
SHOWN = {"fields": ["notation", "groups", "vintage"], "language": "de-CH", "explain": True}
# A filter, and the labels that it admits.
FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"where": {"groups": ["food", "drink"]}}, ["bread", "cheese", "wine"]),
    ({"where": {"groups": "food", "notation": "664.7"}}, ["bread"]),
    ({"where": {"year": [1855, 1873]}}, ["wine", "tennis"]),
    ({"under": "cheese"}, ["cheese", "wine"]),
    ({"under": "bread", "where": {"groups": ["drink"]}}, ["wine"]),
]
# A door: the labels of each query, with some options.
Ask = Callable[[dict[str, Any]], list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def store(golden_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed store with fields of labels: those of most labels in the bundle, one live."""
    folder = tmp_path_factory.mktemp("fields")
    rows = [{"uid": uid, "text": f"{uid} and {TOPICS[uid].split()[0]}", **own} for uid, own in FIELDS.items()]
    path = copy_store(golden_store, folder / "store")
    run("extend", path, "--add", write_lines(folder / "most.jsonl", rows[:-1]))
    run("compact", path, "--index", "flat", "--activate")
    run("extend", path, "--add", write_lines(folder / "last.jsonl", rows[-1:]))
    return path


@pytest.fixture(scope="module", params=["http", "batch", "python", "command line", "jsonl", "csv", "parquet"])
def ask(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    texts = [*QUERIES.values()]
    match request.param:
        case "http":
            with serving(store) as server:
                yield lambda options: [server.ask(text, **options).json()["labels"] for text in texts]
        case "batch":
            with serving(store) as server:

                def ask_batch(options: dict[str, Any]) -> list[list[dict[str, Any]]]:
                    body = {"queries": texts, **options}
                    return [
                        each["labels"] for each in server.client.post("/predict/batch", json=body).json()["results"]
                    ]

                yield ask_batch
        case "python":
            model = recollect.open(store)
            yield lambda options: [answer.to_dict()["labels"] for answer in model.answer(texts, **as_keywords(options))]
        case "command line":
            yield lambda options: [
                run_json("predict", texts[0], "--store", store, *flags_of(options))["labels"],
                *([None] * len(texts[1:])),
            ]
        case suffix:
            if suffix == "parquet" and not is_present("parquet"):
                pytest.skip("the extra for Parquet is deleted")
            folder = tmp_path_factory.mktemp("bulk")

            def ask_file(options: dict[str, Any]) -> list[list[dict[str, Any]]]:
                rows = write_lines(folder / "in.jsonl", [{"text": text} for text in texts])
                output = folder / f"out.{suffix}"
                flags = ["--columns", "text", "--workers", 1, "--overwrite", *flags_of(options)]
                run("predict", "--input", rows, "--output", output, "--store", store, *flags)
                return read(output)

            yield ask_file


def flags_of(options: dict[str, Any]) -> list[str]:
    where = {name: json.dumps(value) if name == "where" else value for name, value in options.items()}
    return as_flags(where)


def read(output: Path) -> list[list[dict[str, Any]]]:
    """The labels in a file of answers. JSON in a column of Parquet is parsed, and absent values are left out."""
    if output.suffix == ".jsonl":
        return [json.loads(line)["labels"] for line in output.read_text(encoding="utf-8").splitlines()]
    if output.suffix == ".csv":
        import csv

        with output.open(encoding="utf-8", newline="") as file:
            return [json.loads(row["labels"]) for row in csv.DictReader(file)]
    import pyarrow.parquet as pq

    found = [without_none(row) for row in pq.read_table(output).column("labels").to_pylist()]
    for label in (label for row in found for label in row if label.get("vintage")):
        label["vintage"] = json.loads(label["vintage"])
    return [[{name: label[name] for name in label if label[name] not in ("", {})} for label in row] for row in found]


def without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [without_none(each) for each in value]
    if isinstance(value, dict):
        return {name: without_none(each) for name, each in value.items() if each is not None}
    return value


def test_a_filter_gives_the_answers_of_allow_through_every_door(ask: Ask, store: Path) -> None:
    model = recollect.open(store)
    for chosen, admitted in FILTERS:
        options = {"top_k": 3, "order": "score", **chosen, **SHOWN}
        usual = {name: options[name] for name in options if name not in ("where", "under")}
        expected = model.answer([*QUERIES.values()], allow=admitted, **as_keywords(usual))
        for labels, answer in zip(ask(options), expected, strict=True):
            if labels is None:
                continue
            assert not differences(labels, answer.to_dict()["labels"]), chosen
            assert {label["uid"] for label in labels} <= {*admitted}


def test_names_and_fields_are_those_of_the_labels(ask: Ask) -> None:
    labels = {label["uid"]: label for label in ask({"top_k": 1_000, "lambda": 0, "order": "score", **SHOWN})[0]}
    assert {*labels} >= {*FIELDS}
    for uid, label in labels.items():
        own = FIELDS.get(uid, {})
        assert label["name"] == own.get("names", {}).get("de", own.get("name", label["text"]))
        expected = {name: own[name] for name in ("notation", "groups", "vintage") if name in own}
        assert {name: label[name] for name in ("notation", "groups", "vintage") if name in label} == expected
