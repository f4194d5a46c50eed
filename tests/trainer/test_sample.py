"""`recollect sample` writes the built-in dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.sample import SampleCounts, write_sample
from recollect.trainer.errors import DatasetError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples") / "made" / "sample"
    assert recollect.main(["sample", str(folder)]) == 0
    return folder


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]


def test_sample_is_a_dataset_of_thousands_of_labels(folder: Path) -> None:
    dataset = open_dataset(folder)
    assert len(dataset.labels) == 6_548
    assert (len(dataset.read_split("train")), len(dataset.read_split("test"))) == (10_970, 1_538)


def test_every_label_has_a_train_sentence_and_splits_are_disjoint(folder: Path) -> None:
    train, test = rows(folder, "train"), rows(folder, "test")
    assert {position for row in train for position in row["labels"]} == set(range(len(rows(folder, "labels"))))
    for field in ("text", "uid"):
        assert len({row[field] for row in train + test}) == len(train + test)


def test_labels_of_a_sentence_are_the_names_that_it_documents(folder: Path) -> None:
    uids = [row["uid"] for row in rows(folder, "labels")]
    assert uids == sorted(uids)
    labels = {row["text"]: [uids[position] for position in row["labels"]] for row in rows(folder, "train")}
    assert {"builtins.open", "io.open"} <= set(labels["Open file and return a stream."])
    assert labels["Return the square root of x."] == ["math.sqrt"]
    assert rows(folder, "labels")[uids.index("pathlib.Path.is_dir")]["text"] == "is dir (pathlib.Path.is_dir)"


def test_sample_without_some_packages_is_smaller_and_complete(tmp_path: Path) -> None:
    counts = write_sample(tmp_path / "small", ["tkinter", "email", "cmath"])
    dataset = open_dataset(tmp_path / "small")
    assert counts == SampleCounts(
        len(dataset.labels), len(dataset.read_split("train")), len(dataset.read_split("test"))
    )
    assert counts.labels < 6_548
    assert not [row for row in rows(tmp_path / "small", "labels") if row["uid"].startswith(("tkinter", "email"))]
    assert "Return the square root of x." in {row["text"] for row in rows(tmp_path / "small", "train")}


def test_sample_folder_that_contains_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"an empty one; found notes\.txt in it: remove it or name another one"):
        write_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(DatasetError, match="found a file"):
        write_sample(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"
