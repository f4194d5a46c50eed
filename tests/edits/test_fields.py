"""Every field of a live instance or label that is declared passes through every door, with its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import recollect
from recollect.edits.changes import NewInstance, NewLabel
from tests.conftest import Built
from tests.processes import copy_store, serving

KEY = "writer-0123456789abcdef"
KEYS = f"writer {KEY} write\n"
DECLARED = {"instance": NewInstance.model_fields, "label": NewLabel.model_fields}
MANUAL = Path(__file__).parents[2] / "docs" / "live-memory.md"


def value_of(field: FieldInfo) -> Any:
    """A value that the field accepts, and that is not its default."""
    for value in ("Probe", 2.5, 3, True, ["Probe"], {"de": "Probe"}):
        try:
            TypeAdapter(field.rebuild_annotation()).validate_python(value, strict=True)
        except ValidationError:
            continue
        if value != field.default:
            return value
    raise AssertionError(f"no value for {field}")


VALUES = {kind: {name: value_of(field) for name, field in fields.items()} for kind, fields in DECLARED.items()}
# A label keeps fields that are not declared, too.
FURTHER = {"colours": ["red", {"shade": 3.5}], "in stock": True}
VALUES["label"] |= FURTHER


def exported(store: Path, out: Path) -> dict[str, dict[str, Any]]:
    """The instance and the label of this test in the files that `recollect export` writes."""
    assert recollect.main(["export", str(store), "--out", str(out)]) == 0
    found = {}
    for kind, name in (("instance", "train"), ("label", "labels")):
        lines = map(json.loads, (out / f"{name}.jsonl").read_text("utf-8").splitlines())
        (found[kind],) = (line for line in lines if line["uid"] == VALUES[kind]["uid"])
    return found


def fetched(client: httpx.Client) -> dict[str, dict[str, Any]]:
    paths = {"instance": "memory/instances", "label": "labels"}
    return {kind: client.get(f"/{path}/{VALUES[kind]['uid']}").json() for kind, path in paths.items()}


@pytest.fixture(scope="module")
def found(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """The fields of an instance and a label, as each door shows them."""
    folder = tmp_path_factory.mktemp("fields")
    written, extended, served = (copy_store(built.store, folder / name) for name in ("written", "extended", "served"))
    found = {}
    recollect.open(written, live="write").add(instances=[VALUES["instance"]], labels=[VALUES["label"]])
    with serving(written, keys=KEYS, key=KEY) as server:
        found["Python and the log"] = fetched(server.client)
    found["export"] = exported(written, folder / "exported")
    for name in ("labels", "train"):
        assert recollect.main(["extend", str(extended), "--add", str(folder / "exported" / f"{name}.jsonl")]) == 0
    found["extend"] = exported(extended, folder / "of extended")
    assert recollect.main(["compact", str(written), "--index", "flat", "--activate"]) == 0
    found["compact"] = exported(written, folder / "of compacted")
    with serving(served, "--writable", keys=KEYS, key=KEY) as server:
        for kind in ("label", "instance"):
            server.client.post(f"/memory/{kind}s", json={f"{kind}s": [VALUES[kind]]}).raise_for_status()
        found["HTTP"] = fetched(server.client)
        schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    # A schema has names alone, so each name gets its value.
    for door, names in (("requests", ("NewInstance", "NewLabel")), ("answers", ("MemoryInstance", "LabelResponse"))):
        found[f"OpenAPI of {door}"] = {
            kind: {field: VALUES[kind].get(field) for field in [*schemas[name]["properties"], *FURTHER]}
            for kind, name in zip(("instance", "label"), names, strict=True)
        }
    return found


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in VALUES for field in VALUES[kind]])
def test_field_passes_through_every_door(found: dict[str, dict[str, dict[str, Any]]], kind: str, field: str) -> None:
    values = {door: shown[kind].get(field) for door, shown in found.items()}
    assert values == dict.fromkeys(found, VALUES[kind][field])


@pytest.mark.parametrize("field", DECLARED["instance"])
def test_manual_names_every_field(field: str) -> None:
    assert f'"{field}"' in MANUAL.read_text("utf-8")


@pytest.mark.parametrize("text", ["\ud800", "a" * 20_001])
def test_string_that_no_memory_can_keep_is_refused_in_every_field(text: str) -> None:
    class Sourced(NewInstance):
        source: str = ""

    with pytest.raises(ValidationError, match="surrogate pair|at most 20,000 characters"):
        Sourced(uid="a", text="bread", labels=["b"], source=text)
