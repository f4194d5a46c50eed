"""The layout of xclib and of programs that read it: relevance and bags of words as text, and raw texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.split import Split
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]

WORDS = ["garden", "chair", "red", "paint"]


@pytest.fixture
def raw(tmp_path: Path, write_lines: WriteLines) -> Path:
    """Raw texts of two instances and three labels."""
    write_lines(tmp_path / "raw_data" / "train.raw.txt", ["a chair of wood", "paint"])
    write_lines(tmp_path / "raw_data" / "label.raw.txt", ["garden chair", "red paint", "chair"])
    write_lines(tmp_path / "trn_X_Y.txt", ["2 3", "2:1.000000 0:1.000000", "1:1"])
    return tmp_path


@pytest.fixture
def bags(tmp_path: Path, write_lines: WriteLines) -> Path:
    """Bags of words of two instances and two labels, without raw texts."""
    write_lines(tmp_path / "Xf.txt", WORDS)
    write_lines(tmp_path / "trn_X_Xf.txt", ["2 4", "0:0.25 1:0.75", "2:0.5 3:0.5"])
    write_lines(tmp_path / "lbl_X_Xf.txt", ["2 4", "1:0.6 0:0.6", "3:0.1 2:0.9"])
    write_lines(tmp_path / "trn_X_Y.txt", ["2 2", "0:1", ""])
    return tmp_path


def read(folder: Path) -> Split:
    return open_dataset(folder).read_split("train")


def test_relevance_may_be_an_archive_of_scipy(raw: Path) -> None:
    (raw / "trn_X_Y.txt").unlink()
    sparse.save_npz(raw / "trn_X_Y.npz", sparse.csr_matrix(np.array([[1, 0, 1], [0, 1, 0]])))
    assert label_lists(read(raw)) == [[0, 2], [1]]


def test_raw_file_with_a_uid_in_every_line_gives_uids_and_texts(raw: Path, write_lines: WriteLines) -> None:
    write_lines(raw / "raw_data" / "train.raw.txt", ["B01->a -> b", "B02->paint"])
    entries = read(raw).entries
    assert entries.uids.to_pylist() == ["B01", "B02"]
    assert entries.texts.to_pylist() == ["a -> b", "paint"]


def test_arrow_in_some_texts_only_is_part_of_the_text(raw: Path, write_lines: WriteLines) -> None:
    write_lines(raw / "raw_data" / "train.raw.txt", ["paint", "B01->a", "garden"])
    write_lines(raw / "trn_X_Y.txt", ["3 3", "", "", ""])
    notes = list[str]()
    split = open_dataset(raw, note=notes.append).read_split("train")
    assert split.entries.texts.to_pylist() == ["paint", "B01->a", "garden"]
    assert notes == [f"{raw}/raw_data/train.raw.txt: 1 of 3 lines look like uid->text; they are read as texts"]


def test_line_without_an_arrow_is_refused_if_most_lines_have_one(raw: Path, write_lines: WriteLines) -> None:
    write_lines(raw / "raw_data" / "train.raw.txt", ["B01->a", "paint"])
    with pytest.raises(
        DatasetError, match=r"train\.raw\.txt:2: expected uid->text, as in 1 of 2 lines, found 'paint'; add"
    ):
        read(raw)


def test_bag_of_words_becomes_a_text_with_the_largest_weight_first(bags: Path) -> None:
    dataset = open_dataset(bags)
    assert dataset.read_split("train").entries.texts.to_pylist() == ["chair garden", "red paint"]
    assert dataset.labels.texts.to_pylist() == ["garden chair", "red paint"]
    assert label_lists(dataset.read_split("train")) == [[0], []]


def test_bag_of_words_without_its_words_is_refused_and_the_error_names_both_files(bags: Path) -> None:
    (bags / "Xf.txt").unlink()
    with pytest.raises(DatasetError, match=r"lbl_X_Xf\.txt and Xf\.txt, found lbl_X_Xf\.txt without Xf\.txt.*add the"):
        open_dataset(bags)


def test_words_of_another_dataset_are_refused(bags: Path, write_lines: WriteLines) -> None:
    write_lines(bags / "Xf.txt", WORDS[:3])
    with pytest.raises(DatasetError, match=r"expected 2 x 3 \(rows x the lines of Xf\.txt\), found 2 x 4"):
        open_dataset(bags)


BAD_MATRICES: dict[str, tuple[list[Any], str]] = {
    "no header": (["0:1 2:1", "1:1"], r":1: expected two numbers, .* found '0:1 2:1'"),
    "too few rows": (["2 3", "0:1"], r": expected 2 rows, as its first line states, found 1"),
    "word": (["2 3", "0:1", "red"], r":3: expected entries like 3:1\.0, found 'red'"),
    "infinite value": (["2 3", "0:1", "1:inf"], r":3: expected entries like"),
    "column too large": (["2 3", "0:1 2:1", "1:1 3:1"], r":3: column 3 is out of range; expected 0 to 2"),
    "negative column": (["2 3", "", "-1:1"], r":3: column -1 is out of range"),
    "wrong shape": (["3 3", "0:1", "", ""], r": expected 2 x 3 \(the texts of train\.raw\.txt x labels\), found 3 x 3"),
}


@pytest.mark.parametrize(("lines", "complaint"), BAD_MATRICES.values(), ids=BAD_MATRICES)
def test_bad_matrix_is_refused_and_the_error_names_file_and_line(
    raw: Path, write_lines: WriteLines, lines: list[Any], complaint: str
) -> None:
    write_lines(raw / "trn_X_Y.txt", lines)
    with pytest.raises(DatasetError, match=rf"trn_X_Y\.txt{complaint}"):
        read(raw)
