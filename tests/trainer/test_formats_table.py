"""Tables as datasets: CSV, TSV, JSON lines, Parquet and data frames. Messages show the columns and a command."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.trainer.data.dataset import Dataset, open_dataset, open_named
from recollect.trainer.data.split import Split
from recollect.trainer.errors import DatasetError
from recollect.trainer.settings import DatasetSettings
from tests.trainer.helpers import label_lists

FLAGS: dict[str, Any] = {
    "text_columns": ["title", "description"],
    "label_column": "categories",
    "label_separator": "|",
}
ROWS: list[dict[str, Any]] = [
    {"title": "Red chair", "description": "for the garden, or the lawn", "categories": "garden| chairs |"},
    {"title": 'A "fine" table', "description": "", "categories": "tables"},
    {"title": "Lamp", "description": "two\nlines", "categories": ""},
    {"title": "Bench", "description": None, "categories": "chairs|garden"},
]


def named(split: Split, dataset: Dataset) -> dict[str, list[str]]:
    """The names of the labels of each text."""
    uids = dataset.labels.uids.to_pylist()
    texts = split.entries.texts.to_pylist()
    return {text: [uids[label] for label in row] for text, row in zip(texts, label_lists(split), strict=True)}


EXPECTED = {
    "Red chair for the garden, or the lawn": ["chairs", "garden"],
    'A "fine" table': ["tables"],
    "Bench": ["chairs", "garden"],
}


def as_csv(rows: list[dict[str, Any]], separator: str = ",") -> str:
    cells = ([str(value or "").replace('"', '""') for value in row.values()] for row in rows)
    lines = [separator.join(f'"{cell}"' for cell in row) for row in cells]
    return "\n".join([separator.join(rows[0]), *lines]) + "\n"


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write rows in the format of the suffix."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    if kind == "jsonl":
        content = "".join(f"{json.dumps(row)}\n" for row in rows)
    else:
        content = "\ufeff" + as_csv(rows, "\t" if kind == "tsv" else ";" if "semicolons" in path.name else ",")
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "semicolons.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_each_kind_of_file_gives_the_same_texts_and_labels(tmp_path: Path, name: str) -> None:
    notes = list[str]()
    path = write(tmp_path / name)
    dataset = open_dataset(path, **FLAGS, note=notes.append)
    split = dataset.read_split("train")
    assert named(split, dataset) == EXPECTED
    assert dataset.labels.texts.equals(dataset.labels.uids)
    assert split.entries.uids.to_pylist() == ["0", "1", "3"]
    (note,) = notes
    assert note.startswith(f"{path}: 1 of 4 rows have no label; they are left out (the first: {path}")


@pytest.mark.parametrize("kind", ["arrow", "stream", "pandas", "polars"])
def test_data_frames_are_read_as_files_are(kind: str) -> None:
    frame: Any = pa.Table.from_pylist(ROWS)
    if kind == "stream":

        class Frame:
            def __init__(self, table: Any) -> None:
                self.__arrow_c_stream__ = table.__arrow_c_stream__

        frame = Frame(frame)
    elif kind != "arrow":
        frame = pytest.importorskip(kind, reason=f"{kind} is not installed").DataFrame(ROWS)
    dataset = open_named(DatasetSettings(dataset=Path("DataFrame"), **FLAGS).with_frame(frame))
    assert named(dataset.read_split("train"), dataset) == EXPECTED


def test_rows_of_one_id_are_one_text_and_numbers_are_texts(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "title": "a", "code": [1, 2]},
        {"id": 8, "title": "b", "code": []},
        {"id": 7, "title": "a", "code": [2.0, "x"]},
        {"id": 8, "title": "b", "code": ["x"]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    dataset = open_dataset(path, text_columns=["title"], label_column="code", id_column="id")
    split = dataset.read_split("train")
    assert split.entries.uids.to_pylist() == ["7", "8"]
    assert named(split, dataset) == {"a": ["1", "2", "x"], "b": ["x"]}
    rows[2]["title"] = "c"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DatasetError, match=r"t.jsonl:3: id: expected the same text in all rows of '7', found .* 'c'; "):
        open_dataset(path, text_columns=["title"], label_column="code", id_column="id")


def test_labels_come_from_their_own_table_with_fields(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "uid,text,parents,name:fi,notation,rank\ngarden,Garden,,puutarha,7,\nchairs,Chairs,garden|tables,,,2\n"
        "tables,Tables,,,,\n"
    )
    path = write(tmp_path / "t.csv")
    dataset = open_dataset(path, **FLAGS, labels=labels)
    assert dataset.labels.texts.to_pylist() == ["Garden", "Chairs", "Tables"]
    assert dataset.labels.fields is not None
    assert [json.loads(each or "{}") for each in dataset.labels.fields.to_pylist()] == [
        {"names": {"fi": "puutarha"}, "notation": "7"},
        {"parents": ["garden", "tables"], "rank": "2"},
        {},
    ]
    assert {text: {*row} for text, row in named(dataset.read_split("train"), dataset).items()} == {
        text: {*row} for text, row in EXPECTED.items()
    }
    labels.write_text("uid,text\ngarden,Garden\nchairs,Chairs\n")
    with pytest.raises(DatasetError, match=r"t.csv: row 2: label uid 'tables' is unknown; .*--unknown-labels drop"):
        open_dataset(path, **FLAGS, labels=labels).read_split("train")
    notes = list[str]()
    split = open_dataset(path, **FLAGS, labels=labels, unknown_labels="drop", note=notes.append).read_split("train")
    assert split.entries.uids.to_pylist() == ["0", "3"]
    assert notes == [
        f"{path}: 2 of 4 rows have no label; they are left out (the first: {path}: row 2)",
        f"{path}: 1 names of labels are unknown; they are dropped (the first: {path}: row 2: tables)",
    ]


def test_labels_that_contain_a_separator_are_reported(tmp_path: Path) -> None:
    path, notes = write(tmp_path / "t.csv", [ROWS[0], ROWS[3]]), list[str]()
    open_dataset(path, text_columns=["title"], label_column="categories", note=notes.append)
    assert notes == [f"{path}: many labels contain '|'; if it is between labels, give --label-separator '|'"]
    notes.clear()
    open_dataset(path, text_columns=["title"], label_column="categories", label_separator="/", note=notes.append)
    assert notes == [
        f"{path}: --label-separator '/': no row has several labels",
        f"{path}: many labels contain '|'; if it is between labels, give --label-separator '|'",
    ]


class TestTestFraction:
    def test_equal_texts_are_on_one_side_in_every_order(self, tmp_path: Path) -> None:
        rows = [{"text": f"text {number % 150}", "label": "a" if number % 2 else "b"} for number in range(300)]
        flags: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "test_fraction": 0.2}
        splits = []
        for name, order in (("t.csv", rows), ("u.jsonl", rows[::-1])):
            dataset = open_dataset(write(tmp_path / name, order), **flags)
            splits.append({side: {*dataset.read_split(side).entries.strings()} for side in ("train", "test")})
        assert splits[0] == splits[1]
        assert not splits[0]["train"] & splits[0]["test"]
        assert len(splits[0]["train"] | splits[0]["test"]) == 150
        assert 15 <= len(splits[0]["test"]) <= 45

    def test_native_folder_without_a_test_file_can_hold_out(self, tmp_path: Path) -> None:
        (tmp_path / "labels.jsonl").write_text('{"uid": "a", "text": "A"}\n')
        lines = "".join(json.dumps({"text": f"t{number}", "labels": ["a"]}) + "\n" for number in range(40))
        (tmp_path / "train.jsonl").write_text(lines)
        dataset = open_dataset(tmp_path, test_fraction=0.5)
        assert len(dataset.read_split("train")) + len(dataset.read_split("test")) == 40
        (tmp_path / "test.jsonl").write_text(lines)
        with pytest.raises(
            DatasetError, match="--test-fraction: expected a table, or a folder with train.jsonl and no"
        ):
            open_dataset(tmp_path, test_fraction=0.5)

    def test_fraction_that_leaves_a_side_empty_is_refused(self, tmp_path: Path) -> None:
        dataset = open_dataset(write(tmp_path / "t.csv"), **FLAGS, test_fraction=1e-9)
        with pytest.raises(
            DatasetError, match="--test-fraction 1e-09: expected texts for training and for the test, f"
        ):
            dataset.read_split("train")


Edit = Callable[[Path], Any]


def raw(content: bytes, name: str = "t.csv") -> Edit:
    def edit(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return edit


HEADER = b"title,description,categories\n"


@pytest.mark.parametrize(
    ("make", "flags", "message"),
    [
        (raw(b""), {}, "expected a header with different names of columns, found an empty file"),
        (raw(b"title\tdescription\tcategories\n"), {}, "expected columns between ',', found one column 'title"),
        (raw(HEADER), {}, "expected rows with a label in column categories, found no row"),
        (raw(HEADER + b"a,b,\n"), {}, "expected rows with a label in column categories, found 1 rows without one"),
        (raw(b"title,title\n"), {}, "expected a header with different names of columns, found title, title"),
        (raw(HEADER + b"a,b,c,d\n"), {}, "row 1: expected CSV, found: 4 values for 3 columns"),
        (raw(HEADER + b"a\xff,b,c\n"), {}, "t.csv:2: expected UTF-8, found byte 0xff"),
        (raw(HEADER + b'a,b,"c\x00d"\n'), {}, r"row 1: categories: expected no control characters, found '\x00' in"),
        (raw(HEADER + b"\xe2\x80\x8b,,c\n"), {}, "row 1: the text is empty; add words, or choose --empty-texts"),
        (raw(gzip.compress(HEADER * 99)[:-9], "t.csv.gz"), {}, "the gzip stream breaks"),
        (raw(b"PAR1 no", "t.parquet"), {}, "t.parquet: expected Parquet, found: "),
        (raw(b'{"title": 1', "t.jsonl"), {}, "t.jsonl:1: expected a JSON object, found "),
        (raw(b"", "t.jsonl"), {}, "t.jsonl: expected JSON objects, found an empty file"),
        (raw(b'{"title": [1], "categories": "a"}', "t.jsonl"), {"text_columns": ["title"]}, "title: expected a text, "),
        (
            raw(rb'{"title": "a", "description": "", "categories": ["\ud800"]}', "t.jsonl"),
            {},
            "half of a surrogate pair",
        ),
        (raw(b"", "t.xlsx"), {}, "expected a table that ends in .csv, .tsv, .jsonl, .ndjson, .parquet (each but"),
        (
            write,
            {"label_column": "title"},
            "--label-column: expected a column that is no part of the text, found title",
        ),
        (write, {"text_columns": ["title", "title"]}, "--text-columns: expected each column once, found title,title"),
        (write, {"text_fields": ["a"]}, "--text-fields: expected a folder of JSON lines, found the format table"),
        (write, {"unknown_labels": "drop"}, "--unknown-labels: expected a format with names of labels"),
        (write, {"format_name": "native"}, "--format native: expected a folder, found a table"),
    ],
)
def test_wrong_table_is_one_message(tmp_path: Path, make: Edit, flags: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.csv") if make is write else make(tmp_path)
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, **FLAGS | flags).read_split("train")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class TestMessagesShowTheCommand:
    def message(self, path: Path, **flags: Any) -> str:
        with pytest.raises(DatasetError) as caught:
            open_dataset(path, **flags)
        return str(caught.value)

    def test_without_flags(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv")
        assert self.message(path) == (
            f"{path}: expected --text-columns and --label-column, found the columns title, description, categories; "
            f"for example `recollect train {path} --text-columns title,description --label-column categories "
            "--label-separator '|'`"
        )

    def test_with_an_unknown_column(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.parquet")
        assert self.message(path, text_columns=["titel"], label_column="categories", label_separator="/") == (
            f"{path}: --text-columns: expected a column named titel, found the columns title, description, categories; "
            f"for example `recollect train {path} --text-columns title,description --label-column categories "
            "--label-separator /`"
        )

    def test_of_a_folder_with_a_table(self, tmp_path: Path) -> None:
        path = write(tmp_path / "products.tsv", [{"a": "x", "b": "y"}])
        assert self.message(tmp_path) == (
            f"{tmp_path}: expected a known layout of a folder, or the path of a table, found the table products.tsv "
            f"with the columns a, b; for example `recollect train {path} --text-columns NAMES --label-column NAME`"
        )

    def test_of_a_folder_in_another_layout_with_flags_of_tables(self, tmp_path: Path) -> None:
        (tmp_path / "labels.jsonl").write_text('{"uid": "a", "text": "A"}\n')
        assert "--text-columns: expected a table, which is a file, found the format native; omit" in self.message(
            tmp_path, text_columns=["title"]
        )
