from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.split import Split
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

LABELS = {"label": ["red", "green", "blue"], "text": ["Red", "Green", "Blue"]}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Split]:
    """Returns a function that writes three labels and a table of clicks, and reads the train split."""

    def read_train(clicks: dict[str, Any], labels: dict[str, Any] = LABELS) -> Split:
        pq.write_table(pa.table(labels), tmp_path / "labels.parquet")
        pq.write_table(pa.table(clicks), tmp_path / "train.parquet")
        return open_dataset(tmp_path).read_split("train")

    return read_train


Read = Callable[..., Split]


def as_lists(split: Split) -> dict[str, list[int]]:
    return dict(zip(split.entries.texts.to_pylist(), label_lists(split), strict=True))


def test_repeated_queries_become_one_instance_in_order_of_first_click(read: Read) -> None:
    split = read({"query": ["sky", "rose", "sky", "sky"], "label": ["blue", "red", "red", "blue"]})
    assert as_lists(split) == {"sky": [0, 2], "rose": [0]}
    assert split.entries.texts.to_pylist() == ["sky", "rose"]
    assert split.entries.uids.to_pylist() == ["0", "1"]


def test_weights_of_equal_clicks_are_added_and_pairs_without_a_positive_sum_are_dropped(read: Read) -> None:
    clicks = {
        "query": ["sky", "sky", "sky", "rose", "rose", "leaf"],
        "label": ["blue", "red", "red", "red", "red", "green"],
        "weight": [1.0, 2.0, -2.0, -1.0, 1.5, 0.0],
    }
    assert as_lists(read(clicks)) == {"sky": [2], "rose": [0], "leaf": []}


@pytest.mark.parametrize(("query", "label"), [("query", "label"), ("query_text", "label_uid"), ("text", "uid")])
def test_each_column_may_have_one_of_several_names(read: Read, query: str, label: str) -> None:
    labels = {label: LABELS["label"], "label_text": LABELS["text"]}
    assert as_lists(read({query: ["sky"], label: ["blue"]}, labels)) == {"sky": [2]}


@pytest.mark.parametrize("kind", [pa.uint64(), pa.string()], ids=str)
def test_label_uids_may_be_integers_or_strings_in_either_file(read: Read, kind: pa.DataType) -> None:
    labels = {"label": pa.array([10, 20, 30]), "text": LABELS["text"]}
    clicks = {"query": ["sky"], "label": pa.array([30]).cast(kind)}
    assert as_lists(read(clicks, labels)) == {"sky": [2]}


def test_folder_of_parquet_files_is_read_as_one_concatenated_table(tmp_path: Path) -> None:
    for name, parts in {
        "labels": [{"label": ["red"], "text": ["Red"]}, {"label": ["blue"], "text": ["Blue"]}],
        "train": [{"query": ["sky", "rose"], "label": ["blue", "red"]}, {"query": ["sky"], "label": ["red"]}],
    }.items():
        (tmp_path / f"{name}.parquet").mkdir()
        for number, part in enumerate(parts):
            pq.write_table(pa.table(part), tmp_path / f"{name}.parquet" / f"part-{number}.parquet")
        (tmp_path / f"{name}.parquet" / "_SUCCESS").touch()  # Spark writes this marker file
    dataset = open_dataset(tmp_path)
    assert dataset.labels.uids.to_pylist() == ["red", "blue"]
    assert as_lists(dataset.read_split("train")) == {"sky": [0, 1], "rose": [0]}


def test_unknown_labels_are_dropped_with_a_note(tmp_path: Path) -> None:
    pq.write_table(pa.table(LABELS), tmp_path / "labels.parquet")
    clicks = {"query": ["sky", "sea", "sky"], "label": ["mauve", "teal", "blue"], "weight": [1.0, 1.0, 2.0]}
    pq.write_table(pa.table(clicks), tmp_path / "train.parquet")
    notes = list[str]()
    dataset = open_dataset(tmp_path, unknown_labels="drop", note=notes.append)
    assert as_lists(dataset.read_split("train")) == {"sky": [2], "sea": []}
    path = tmp_path / "train.parquet"
    assert notes == [f"{path}: 2 names of labels are unknown; they are dropped (the first: {path}: row 1: mauve)"]


PARTS: dict[str, list[dict[str, Any]]] = {
    "weights in the second file": [
        {"query": ["sky"], "label": ["blue"]},
        {"weight": [-3, 1], "label": ["blue", "red"], "query": ["sky", "rose"]},
    ],
    "weights in the first file": [
        {"query": ["sky", "rose"], "label": ["blue", "red"], "weight": [-1.5, 1.0]},
        {"query_text": ["sky"], "label_uid": ["blue"]},
    ],
    "no rows and no types in the first file": [
        {"query": pa.nulls(0), "label": pa.nulls(0)},
        {"query": ["sky", "rose"], "label": ["blue", "red"], "weight": [-1, 1]},
    ],
    "categories in the second file": [
        {"query": ["sky"], "label": ["blue"], "weight": [-1]},
        {"query": pa.array(["rose"]).dictionary_encode(), "label": pa.array(["red"], pa.large_string())},
    ],
    "views in the second file": [
        {"query": ["sky"], "label": ["blue"], "weight": [-1]},
        {"query": pa.array(["rose"], pa.string_view()), "label": pa.array(["red"], pa.string_view())},
    ],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_files_of_a_folder_may_differ_in_columns_and_types(tmp_path: Path, parts: list[dict[str, Any]]) -> None:
    pq.write_table(pa.table(LABELS), tmp_path / "labels.parquet")
    (tmp_path / "train.parquet").mkdir()
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part), tmp_path / "train.parquet" / f"part-{number}.parquet")
    assert as_lists(open_dataset(tmp_path).read_split("train")) == {"sky": [], "rose": [0]}


def test_file_of_a_folder_without_a_column_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "labels.parquet").mkdir()
    for number, part in enumerate([LABELS, {"label": ["x"], "txt": ["x"]}]):
        pq.write_table(pa.table(part), tmp_path / "labels.parquet" / f"part-{number}.parquet")
    with pytest.raises(DatasetError, match=r"/part-1\.parquet: expected a column text or label_text, found label, txt"):
        open_dataset(tmp_path)


NOT_UTF8 = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"x\xff\xfe"))
BAD_CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown label": (
        {"query": ["a", "b"], "label": ["red", "mauve"]},
        "row 2: label uid 'mauve' is unknown; .*3 uids of labels.parquet",
    ),
    "no query column": (
        {"q": ["a"], "label": ["red"]},
        "expected a column query or query_text or text, found q, label",
    ),
    "no label column": ({"query": ["a"], "id": ["red"]}, "expected a column label or .*, found query, id"),
    "null query": ({"query": ["a", None], "label": ["red", "red"]}, "row 2: 'query': the text is empty"),
    "null label": ({"query": ["a", "b"], "label": ["red", None]}, "row 2: 'label': "),
    "query no string": ({"query": [[1.5]], "label": ["red"]}, "expected column 'query' to hold strings, found list"),
    "query not UTF-8": ({"query": NOT_UTF8, "label": ["red", "red"]}, "expected column 'query' to hold UTF-8"),
    "weight no number": (
        {"query": ["a"], "label": ["red"], "weight": ["heavy"]},
        "expected column 'weight' to hold numbers, found string",
    ),
    "weight null": (
        {"query": ["a"] * 2, "label": ["red"] * 2, "weight": [1, None]},
        "row 2: 'weight': expected a finite relevance, found nan",
    ),
    "no rows": (
        {"query": pa.array([], pa.string()), "label": pa.array([], pa.string())},
        "expected at least one train text, found none",
    ),
}


@pytest.mark.parametrize(("clicks", "complaint"), BAD_CLICKS.values(), ids=BAD_CLICKS)
def test_bad_click_is_refused_and_the_error_names_file_and_row(
    read: Read, clicks: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DatasetError, match=rf"train\.parquet: {complaint}"):
        read(clicks)


@pytest.mark.parametrize("content", [b"query,label\nsky,blue\n", b"PAR1 and then nothing of the kind PAR1"])
def test_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "labels.parquet").write_bytes(content)
    with pytest.raises(DatasetError, match=r"labels\.parquet: expected Parquet, found: ") as refusal:
        open_dataset(tmp_path)
    assert "\n" not in str(refusal.value)
