"""Fields of labels: the labels that a filter admits, live and compacted, are those of a plain reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import recollect
from recollect.core.errors import ChangeError, QueryError
from tests.conftest import Built
from tests.processes import copy_store, serving

GROUPS, UIDS = ["wine", "beer", "wine, red", 'q"uote', "näıve"], [f"l{number}" for number in range(30)]
Fields = dict[str, dict[str, Any]]


def random_fields(rng: np.random.Generator) -> dict[str, Any]:
    fields = {
        "groups": rng.choice(GROUPS, size=int(rng.integers(1, 3)), replace=False).tolist(),
        "parents": rng.choice(UIDS, size=int(rng.integers(1, 3)), replace=False).tolist(),
        "year": int(rng.integers(3)),
        "organic": bool(rng.integers(2)),
        "price": float(rng.integers(4)) / 2,
        "names": {"de": f"Name {rng.integers(9)}", "pt-BR": "nome"},
        "nested": {"deep": [1, 2]},
        "schema": "a name of pydantic",
    }
    return {name: fields[name] for name in fields if rng.random() < 0.7}


def random_filter(rng: np.random.Generator, known: Fields) -> dict[str, Any]:
    """A filter by values that some label has."""
    chosen: dict[str, Any] = {}
    for name in rng.permutation(["groups", "year", "organic", "price"])[: int(rng.integers(3))].tolist():
        values = {repr(value): value for own in known.values() for value in values_of(own, name)}
        if values:
            some = rng.permutation([*values])[: int(rng.integers(1, 3))].tolist()
            chosen[name] = [values[each] for each in some] if rng.random() < 0.8 else values[some[0]]
    return {"where": chosen} if rng.random() < 0.5 else {"where": chosen, "under": str(rng.choice([*known]))}


def values_of(own: dict[str, Any], name: str) -> list[Any]:
    value = own.get(name, [])
    return value if isinstance(value, list) else [value]


def holds(own: dict[str, Any], where: dict[str, Any]) -> bool:
    """Whether a label has one of the values of each field; true is no 1, but 2.0 is 2."""
    return all(
        any(
            each == value and isinstance(each, bool) == isinstance(value, bool)
            for each in values_of(own, name)
            for value in (wanted if isinstance(wanted, list) else [wanted])
        )
        for name, wanted in where.items()
    )


def below(known: Fields, top: str) -> set[str]:
    found = {top}
    while new := {uid for uid, own in known.items() if {*own.get("parents", [])} & found} - found:
        found |= new
    return found


def admitted(known: Fields, every: set[str], where: dict[str, Any], under: str | None = None) -> set[str]:
    return {uid for uid in (every if under is None else below(known, under)) if holds(known.get(uid, {}), where)}


def test_filters_admit_the_labels_of_a_plain_reference(built: Built, tmp_path: Path) -> None:
    rng, store = np.random.default_rng(7), copy_store(built.store, tmp_path / "store")
    model, known = recollect.open(store, live="write"), dict[str, dict[str, Any]]()
    with pytest.raises(QueryError, match="where: expected fields of the labels of this version"):
        model.predict("bread", where={"groups": "wine"})
    bundle_uids = {label.uid for label in model.predict("bread", lambda_=0, top_k=1_000)}

    def change() -> None:
        own = {uid: random_fields(rng) for uid in rng.choice(UIDS, size=18, replace=False).tolist()}
        known.update(own)
        model.add(labels=[{"uid": uid, "text": f"text {uid}"} | fields for uid, fields in own.items()])
        gone = rng.choice([*known], size=4, replace=False).tolist()
        model.remove(labels=gone)
        for uid in gone:
            del known[uid]

    def check() -> None:
        every = {*known} | bundle_uids
        for _ in range(25):
            chosen = random_filter(rng, known)
            expected = admitted(known, every, **chosen)
            for _ in range(2):  # the second answer comes from the kept filter
                found = {label.uid for label in model.predict("bread", lambda_=0, top_k=1_000, **chosen)}
                assert found == expected, chosen
        some = rng.choice(sorted(every), size=10, replace=False).tolist()
        where = {"groups": GROUPS[:2]}
        kept = admitted(known, every, where)
        options = {"lambda_": 0, "top_k": 1_000, "where": where}
        assert {label.uid for label in model.predict("bread", allow=some, **options)} == kept & {*some}
        assert {label.uid for label in model.predict("bread", deny=some, **options)} == kept - {*some}
        for label in model.predict(
            "bread", lambda_=0, top_k=1_000, fields=["nested", "price", "schema"], language="pt-br-x"
        ):
            own = known.get(label.uid, {})
            assert label.fields == {name: own[name] for name in ("nested", "price", "schema") if name in own}
            assert label.name == own.get("names", {}).get("pt-BR", label.text)

    for _ in range(2):
        change()
        check()
    assert recollect.main(["compact", str(store), "--index", "flat", "--activate"]) == 0
    model = recollect.open(store, live="write")
    check()  # all fields are in the bundle
    change()
    check()  # some are live again


def test_kept_filters_do_not_outlive_a_change(built: Built, tmp_path: Path) -> None:
    model = recollect.open(copy_store(built.store, tmp_path / "store"))
    for nth in (1, 2):
        model.add(labels=[{"uid": f"new {nth}", "text": "new", "groups": ["wine"]}])
        assert len(model.predict("bread", lambda_=0, where={"groups": "wine"})) == nth


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": {"groups": "wien"}},
            "where: groups: expected values that a label has, such as 'wine'; found 'wien'",
        ),
        (
            {"where": {"group": "wine"}},
            r"where: expected fields of the labels of this version \(groups\), found 'group'",
        ),
        ({"where": {"groups": []}}, "where: expected at least one value for each field"),
        ({"where": {"groups": {"a": 1}}}, "where: expected texts, finite numbers or booleans"),
        ({"where": {"groups": float("nan")}}, "where: expected texts, finite numbers or booleans"),
        ({"where": "groups"}, "where: expected an object of fields and values"),
        ({"where": "{groups"}, "where: expected the JSON of an object"),
        ({"where": {"groups": ["a"] * 1_001}}, "where: expected at most 32 fields and 1,000 values"),
        ({"where": {"year": 10**5_000}}, "where: expected texts, finite numbers .* found an integer that is too large"),
        ({"under": "nothing"}, "under: expected the uid of a label of this version, found 'nothing'"),
        ({"language": "de_DE"}, "language: expected"),
    ],
)
def test_wrong_filter_is_one_message(model_with_wine: recollect.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        model_with_wine.predict("bread", **options)


@pytest.fixture(scope="module")
def model_with_wine(built: Built) -> recollect.Model:
    model = recollect.open(built.store)
    model.add(labels=[{"uid": "wine", "text": "wine", "groups": ["wine"]}])
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"score": 1}, "score: expected another name of a field, this one is reserved"),
        ({"parents": "wine"}, "parents: expected .*list"),
        ({"names": {"d e": "Wein"}}, "names"),
        ({"name": ""}, "name: expected"),
        ({"price": float("inf")}, "expected values of JSON"),
        ({"thing": object()}, "expected values of JSON"),
        ({"long": "a" * 20_001}, "at most 20,000 bytes of JSON"),
        ({"long": "\ud800"}, "surrogate"),
        ({"deep": json.loads("[" * 60 + "]" * 60)}, "at most 50 levels"),
    ],
)
def test_wrong_field_is_refused(model_with_wine: recollect.Model, fields: dict[str, Any], message: str) -> None:
    before = model_with_wine.sequence
    with pytest.raises(ChangeError, match=message):
        model_with_wine.add(labels=[{"uid": "new", "text": "new", **fields}])
    assert model_with_wine.sequence == before


def test_service_filters_and_names(built: Built, tmp_path: Path) -> None:
    store = copy_store(built.store, tmp_path / "store")
    wine = {"uid": "wine", "text": "red white", "name": "Wine", "names": {"de": "Wein"}, "notation": "641.2"}
    port = {"uid": "port", "text": "port", "names": {"fi": "portviini"}, "parents": ["wine"], "stock": {"cellar": 3}}
    recollect.open(store, live="write").add(labels=[wine, port])
    with serving(store) as server:

        def ask(**options: Any) -> httpx.Response:
            return server.client.post("/predict", json={"query": "bread", "lambda": 0, **options})

        body = {"under": "wine", "fields": ["stock", "notation"], "language": "de"}
        first, cached = ask(**body), ask(**body)
        labels = {label.pop("uid"): label for label in first.json()["labels"]}
        assert first.content == cached.content
        assert first.json()["exhausted"]
        assert {uid: label["name"] for uid, label in labels.items()} == {"wine": "Wein", "port": "port"}
        assert {*labels["port"]} - {*labels["wine"]} == {"stock"}
        assert labels["wine"]["notation"] == "641.2"
        assert ask(where={}, top_k=2).json()["labels"] == ask(top_k=2).json()["labels"]
        wrong = ask(where={"notation": 641.2})
        assert wrong.status_code == 422
        assert "where: notation: expected values that a label has, such as '641.2'" in wrong.json()["detail"]
        for text in ("Wei", "portv", "red w"):
            (found, *_) = server.client.get("/labels", params={"search": text, "language": "fi"}).json()["labels"]
            assert found["name"] == ("portviini" if text == "portv" else "Wine")
        assert server.client.get("/labels/port").json()["stock"] == {"cellar": 3}
