"""The layout of AttentionXML and LightXML: texts, and the names of their labels, one line for each text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.trainer.data.dataset import FORMATS, open_dataset
from recollect.trainer.errors import DatasetError

WriteLines = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, write_lines: WriteLines) -> Path:
    write_lines(tmp_path / "train_raw_texts.txt", ["sugar from Brazil /SEP/ having regard", "on fish"])
    write_lines(tmp_path / "train_labels.txt", ["trade_policy sugar", "fishery"])
    write_lines(tmp_path / "test_raw_texts.txt", ["quotas"])
    write_lines(tmp_path / "test_labels.txt", ["fishery catch_quota"])
    return tmp_path


def test_names_of_both_splits_are_the_labels(folder: Path) -> None:
    dataset = open_dataset(folder)
    assert dataset.format is FORMATS["attentionxml"]
    assert dataset.labels.uids.to_pylist() == ["catch_quota", "fishery", "sugar", "trade_policy"]
    assert dataset.labels.texts.to_pylist() == ["catch quota", "fishery", "sugar", "trade policy"]
    train, test = dataset.read_split("train"), dataset.read_split("test")
    assert train.labels.to_csr(4).toarray().tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]
    assert test.labels.to_csr(4).toarray().tolist() == [[1, 1, 0, 0]]
    assert train.entries.texts.to_pylist() == ["sugar from Brazil /SEP/ having regard", "on fish"]
    assert train.entries.uids.to_pylist() == ["0", "1"]


def test_tokenised_texts_are_read_if_there_are_no_raw_texts(folder: Path) -> None:
    (folder / "train_raw_texts.txt").rename(folder / "train_texts.txt")
    assert open_dataset(folder).read_split("train").entries.texts.to_pylist()[1] == "on fish"


def test_other_number_of_lines_is_refused(folder: Path, write_lines: WriteLines) -> None:
    write_lines(folder / "train_labels.txt", ["sugar"])
    with pytest.raises(DatasetError, match=r"train_labels\.txt: expected 2 lines, as in train_raw_texts\.txt, found 1"):
        open_dataset(folder).read_split("train")


def test_missing_texts_are_refused_and_the_error_names_the_file(folder: Path) -> None:
    (folder / "test_raw_texts.txt").unlink()
    with pytest.raises(DatasetError, match=r"expected test_raw_texts\.txt or test_texts\.txt, found neither"):
        open_dataset(folder).read_split("test")


def test_name_of_underscores_is_an_empty_label_text(folder: Path, write_lines: WriteLines) -> None:
    write_lines(folder / "train_labels.txt", ["_", "fishery"])
    with pytest.raises(DatasetError, match=r"train_labels\.txt: label '_': the text is empty"):
        open_dataset(folder)
