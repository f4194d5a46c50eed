"""A table goes from a file to an answer. The store remembers how the table was read, and no flag is given twice."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import recollect
from recollect.store.store import Store
from tests.tiny_runs import write_tiny_encoder

COLOURS, THINGS = ("red", "green", "blue", "white"), ("chair", "table", "lamp", "bench", "shelf", "stool")
FLAGS = ["--text-columns", "title,note", "--label-column", "tags", "--label-separator", "|"]
HELD_OUT = ["--test-fraction", ".3"]


class Output(NamedTuple):
    status: int
    out: str
    err: str


def run(*arguments: object) -> Output:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = recollect.main([*map(str, arguments)])
    return Output(status, out.getvalue(), err.getvalue())


def rows() -> list[dict[str, str]]:
    return [
        {"sku": f"{colour}-{thing}", "title": f"{colour} {thing}", "note": "for you", "tags": f"{colour}| {thing}"}
        for colour in COLOURS
        for thing in THINGS
    ]


def write_csv(path: Path, content: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*content[0]])
        table.writeheader()
        table.writerows(content)
    return path


class Made(NamedTuple):
    """A table, and a store with a version that was trained from it. Tests must not change them."""

    table: Path
    run: Path
    store: Path
    encoder: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("table")
    table, encoder = write_csv(folder / "products.csv", rows()), write_tiny_encoder(folder / "encoder", "bert")
    usual = ["--out", folder / "run", "--encoder", encoder, "--epochs", 0, "--max-length", 32]
    assert run("train", table, *FLAGS, *HELD_OUT, "--id-column", "sku", *usual).status == 0
    built = run("build", folder / "run", "--store", folder / "store", "--activate", "--index", "flat", "--force")
    assert built.status == 0, built.err
    return Made(table, folder / "run", folder / "store", encoder)


@pytest.fixture
def store(made: Made, tmp_path: Path) -> Path:
    """A copy of the store that a test may change."""
    return shutil.copytree(made.store, tmp_path / "store")


def change_flags(store: Path, **flags: Any) -> None:
    """Change flags that the current version remembers."""
    path = store / "bundles" / Store(store).require_current() / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["dataset"] |= flags
    path.write_text(json.dumps(manifest))


def test_evaluate_finds_the_held_out_texts_without_a_flag(made: Made) -> None:
    found = run("evaluate", made.table, "--store", made.store, "--json")
    assert found.status == 0, found.err
    held_out = json.loads(found.out)["queries"]
    trained = {json.loads(line)["uid"] for line in (made.run / "memory" / "instances.jsonl").read_text().splitlines()}
    assert 0 < held_out < len(rows())
    assert held_out + len(trained) == len(rows())
    frame = pa.Table.from_pylist(rows()[::-1])
    assert recollect.evaluate(frame, store=made.store)["queries"] == held_out


def test_a_given_flag_that_differs_is_reported(made: Made) -> None:
    found = run("evaluate", made.table, "--store", made.store, "--text-columns", "title", "--label-separator", "|")
    version = Store(made.store).require_current()
    said = f"--text-columns title: version {version} has title,note; the given value is used"
    assert (found.status, [line for line in found.err.splitlines() if line.startswith("--")]) == (0, [said])


def test_another_table_is_a_test_split_as_a_whole_and_the_texts_of_the_memory_are_refused(
    made: Made, tmp_path: Path
) -> None:
    new = write_csv(tmp_path / "new.csv", [row | {"title": f"a {row['title']}"} for row in rows()])
    found = run("evaluate", new, "--store", made.store, "--json")
    assert json.loads(found.out)["queries"] == len(rows())
    assert f"{new}: all texts are the test split, because version" in found.err
    whole = ["--store", made.store, "--test-fraction", 0]
    texts = [json.loads(line) for line in (made.run / "memory" / "instances.jsonl").read_text().splitlines()]
    known = {each["uid"] for each in texts}
    old = write_csv(tmp_path / "old.csv", [row for row in rows() if row["sku"] in known])
    found = run("evaluate", old, *whole)
    assert found.status == 2
    assert "expected other texts than those of version" in found.err.splitlines()[-1]


def test_texts_of_the_memory_are_counted_and_refused_in_every_layout(made: Made, tmp_path: Path) -> None:
    assert run("export", made.store, "--out", tmp_path / "folder").status == 0
    lines = (tmp_path / "folder" / "train.jsonl").read_text().splitlines()
    for added, said in [
        ([], "expected other texts than those of version"),
        ([{"uid": "new", "text": "pink sofa", "labels": json.loads(lines[0])["labels"]}], "are also in the memory"),
    ]:
        tests = "".join(f"{line}\n" for line in [*lines, *map(json.dumps, added)])
        (tmp_path / "folder" / "test.jsonl").write_text(tests)
        found = run("evaluate", tmp_path / "folder", "--store", made.store)
        assert (found.status, said in found.err) == (0 if added else 2, True), found.err


def test_the_gate_and_the_next_version_read_the_table_as_before(made: Made, store: Path) -> None:
    flags = ["--store", store, "--index", "flat", "--force", "--gate-dataset", made.table]
    found = run("build", made.run, *flags)
    assert found.status == 0, found.err
    assert "P@1 on products.csv, points lost" in found.err
    version = found.out.split()[-1]
    assert Store(store).manifest(version).dataset == {
        "format": "table",
        "text_columns": ["title", "note"],
        "label_column": "tags",
        "label_separator": "|",
        "id_column": "sku",
        "test_fraction": 0.3,
    }


def test_the_gate_measures_both_versions_on_the_same_new_texts(made: Made, store: Path, tmp_path: Path) -> None:
    usual = ["--out", tmp_path / "run", "--encoder", made.encoder, "--epochs", 0, "--max-length", 32]
    assert run("train", made.table, *FLAGS, *usual).status == 0
    flags = ["--store", store, "--index", "flat", "--force", "--activate", "--gate-dataset", made.table]
    found = run("build", tmp_path / "run", *flags)
    held_out = len(rows()) - len((made.run / "memory" / "instances.jsonl").read_text().splitlines())
    assert found.err.count(f"the test split has {held_out} of {len(rows())} texts") == 2, found.err
    (line,) = [line for line in found.err.splitlines() if line.startswith("texts of products.csv in the memory, share")]
    assert line.split()[-4:] == ["1", "<=", "0.5", "FAILED"]
    refused = run("build", made.run, *flags)
    assert (refused.status, "expected other texts than those of version" in refused.err) == (2, True), refused.err


def test_compare_continues_with_the_flags_of_its_table(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_in_this_process(_: str, verb: str, *arguments: str) -> None:
        assert run(verb, *arguments).status == 0

    monkeypatch.setattr("recollect.index_builder.compare.run_recollect", run_in_this_process)
    out = ["--out", tmp_path / "table", "--encoder", made.encoder, "--methods", "rae", "--max-length", 32]
    out += ["--max-steps", 2]
    refused = run("compare", made.table, *out).err  # the command in the message keeps the flags that were given
    assert f"--out {tmp_path / 'table'} --encoder {made.encoder} --max-length 32 --max-steps 2 --methods rae" in refused
    assert "--text-columns title --label-column tags --label-separator '|'`" in refused
    assert "--test-fraction, such as .1" in run("compare", made.table, *out, *FLAGS).err
    of_run = ["--out", tmp_path / "other", "--encoder", made.run / "checkpoint", "--test-fraction", 0]
    assert "--test-fraction, such as .1" in run("compare", made.table, *of_run).err  # the columns are those of the run
    first = run("compare", made.table, *out, *FLAGS, *HELD_OUT)
    assert first.status == 0, first.err
    again = run("compare", made.table, *out)
    assert (again.status, again.out) == (0, first.out), again.err


def test_extend_adds_rows_of_a_table_and_new_labels(made: Made, store: Path, tmp_path: Path) -> None:
    more = [
        {"sku": "p1", "title": "pink sofa", "note": "", "tags": "pink|sofa"},
        {"sku": "p2", "title": "red sofa", "note": "soft", "tags": "red"},
        {"sku": "p2", "title": "red sofa", "note": "soft", "tags": "sofa"},
        {"sku": "p3", "title": "nothing", "note": "", "tags": ""},
    ]
    found = run("extend", store, "--add", write_csv(tmp_path / "more.csv", more))
    assert found.status == 0, found.err
    assert found.out.startswith("added instances: 2, added labels: 2, removed: 0")
    assert "1 rows have no label; they are left out (the first: " in found.err
    out = recollect.export(store, out=tmp_path / "exported")
    texts = {row["uid"]: row for row in map(json.loads, (out / "train.jsonl").read_text().splitlines())}
    assert (texts["p2"]["text"], texts["p2"]["labels"]) == ("red sofa soft", ["red", "sofa"])
    labels = write_csv(tmp_path / "labels.csv", [{"uid": "pink", "text": "Pink", "name:fi": "vaaleanpunainen"}])
    assert run("extend", store, "--add", labels).out.startswith("added instances: 0, added labels: 1")
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"uid": "q", "text": "a lamp", "labels": ["lamp"]}\n')
    assert run("extend", store, "--add", lines).out.startswith("added instances: 1, added labels: 0")
    lines.write_text('{"sku": "r", "title": "a lamp", "note": null, "tags": ["lamp", "pink"]}\n')
    assert run("extend", store, "--add", lines).out.startswith("added instances: 1, added labels: 0")


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (
            "sku,titel,note,tags\na,b,c,d\n",
            [],
            "--text-columns: expected a column named title, found the columns sku, titel, note, tags",
        ),
        ("sku,title,note,tags\na,b,c,d\na,c,c,d\n", [], "row 2: sku: expected the text of 'a' that is in "),
        ("sku,title,note,tags\na,,,d\n", [], "row 1: text: the text is empty; send some words"),
        ("sku,title,note,tags\na,b,c\n", [], "row 1: expected CSV, found: 3 values for 4 columns"),
    ],
)
def test_wrong_table_to_add_is_one_message_and_adds_nothing(
    store: Path, tmp_path: Path, content: str, flags: list[str], message: str
) -> None:
    path = tmp_path / "more.csv"
    path.write_text(content)
    found = run("extend", store, "--add", path, *flags)
    assert (found.status, found.err.count("\n"), message in found.err) == (2, 1, True), found.err
    assert "sequence 0" in run("memory", store).out


def test_train_reads_a_data_frame_and_its_messages_are_for_python(made: Made, tmp_path: Path) -> None:
    frame: Any = pa.Table.from_pylist([row | {"tags": row["tags"].split("|")} for row in rows()])
    flags: dict[str, Any] = {"text_columns": ["title"], "encoder": str(made.encoder), "epochs": 0, "max_length": 32}
    recollect.train(frame, out=tmp_path / "run", label_column="tags", **flags)
    memory = [
        json.loads(line)["uid"] for line in (tmp_path / "run" / "memory" / "labels.jsonl").read_text().splitlines()
    ]
    assert memory == sorted({*COLOURS, *THINGS})
    with pytest.raises(
        recollect.ERRORS, match=r"^DataFrame: expected --label-column, found .*; add text_columns=\['ti"
    ):
        recollect.train(frame, out=tmp_path / "other", **flags)
    with pytest.raises(
        recollect.ERRORS, match="expected a path, or a data frame of pandas, polars or Arrow, found int"
    ):
        recollect.train(3, out=tmp_path / "other", **flags)


@pytest.mark.parametrize(
    ("name", "value", "verbs"),
    [
        ("text_columns", 5, ("evaluate", "extend")),
        ("label_separator", 5, ("evaluate", "extend")),
        ("label_column", ["tags"], ("evaluate", "extend")),
        ("labels", 5, ("evaluate",)),
        ("test_fraction", "x", ("evaluate",)),
        ("empty_texts", "all", ("evaluate",)),
    ],
)
def test_wrong_flags_in_a_manifest_are_one_message(
    made: Made, store: Path, name: str, value: Any, verbs: tuple[str, ...]
) -> None:
    change_flags(store, **{name: value})
    for verb in verbs:
        found = run(verb, *([made.table, "--store", store] if verb == "evaluate" else [store, "--add", made.table]))
        assert (found.status, found.err.count("\n")) == (2, 1), found.err
        assert f": dataset.{name}: expected a value of --{name.replace('_', '-')}, found " in found.err


def test_wrong_flags_of_a_run_are_one_message(made: Made, tmp_path: Path) -> None:
    path = shutil.copytree(made.run, tmp_path / "run") / "memory" / "dataset.json"
    path.write_text('{"format_version": 1, "flags": {"format": "table", "text_columns": 5}}')
    found = run("compare", made.table, "--out", tmp_path / "out", "--encoder", tmp_path / "run" / "checkpoint")
    assert (found.status, found.err.count("\n"), "run: dataset.text_columns: expected" in found.err) == (2, 1, True)


def test_a_remembered_table_of_labels_is_read_only_beside_the_table(made: Made, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    table = shutil.copy(made.table, folder)
    labels = [{"uid": name, "text": name} for name in (*COLOURS, *THINGS)]
    for place in (tmp_path, folder):
        path = write_csv(place / "labels.csv", labels)
        change_flags(store, labels=str(path))
        found = run("evaluate", table, "--store", store)
        if place == folder:
            assert found.status == 0, found.err
            path.unlink()
            found = run("evaluate", table, "--store", store)
        assert (found.status, found.err.count("\n")) == (2, 1), found.err
        assert f"--labels: expected the table of labels {path}, with which version" in found.err
    assert run("evaluate", table, "--store", store, "--labels", tmp_path / "labels.csv").status == 0


def test_texts_never_become_labels_without_a_word(made: Made, tmp_path: Path) -> None:
    store, lines = tmp_path / "store", [{"uid": row["sku"], "text": row["title"], "category": "a"} for row in rows()]
    table, more = tmp_path / "train.jsonl", tmp_path / "more.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    flags = ["--text-columns", "text", "--label-column", "category", "--id-column", "uid"]
    usual = ["--out", tmp_path / "run", "--encoder", made.encoder, "--epochs", 0, "--max-length", 32]
    assert run("train", table, *flags, *usual).status == 0
    built = run("build", tmp_path / "run", "--store", store, "--activate", "--index", "flat", "--force")
    assert built.status == 0, built.err
    text = {"uid": "new", "text": "pink sofa"}
    more.write_text(json.dumps(text | {"category": "a"}))
    assert run("extend", store, "--add", more).out.startswith("added instances: 1, added labels: 0")
    names = {"uid": "pink", "text": "Pink", "name": "Rose"}
    more.write_text(json.dumps(names))
    assert run("extend", store, "--add", more).out.startswith("added instances: 0, added labels: 1")
    sequence = json.loads(run("memory", store, "--json").out)["sequence"]
    for wrong, message in [
        ([text | {"categories": "a"}], f"{more}:1: expected a label with the fields "),
        ([names, text | {"category": "a"}], f"{more}:2: expected a label with the fields "),
        ([text | {"label": ["a"]}], "found the fields uid, text, label; rename them"),
    ]:
        more.write_text("".join(f"{json.dumps(row)}\n" for row in wrong))
        found = run("extend", store, "--add", more)
        assert (found.status, found.err.count("\n"), message in found.err) == (2, 1, True), found.err
    table = write_csv(tmp_path / "more.csv", [{**text, "categories": "a"}])
    found = run("extend", store, "--add", table)
    message = "--label-column: expected a column named category, found the columns uid, text, categories"
    assert (found.status, found.err.count("\n"), message in found.err) == (2, 1, True), found.err
    found = run("extend", store, "--add", write_csv(table, [names]), "--label-column", "tags")
    assert (found.status, "expected a column named tags, found the columns uid, text, name" in found.err) == (2, True)
    assert json.loads(run("memory", store, "--json").out)["sequence"] == sequence
