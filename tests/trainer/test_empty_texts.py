"""Empty texts are refused, dropped with their row, or kept; their number is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from recollect.trainer.data.dataset import Dataset, open_dataset
from recollect.trainer.errors import DatasetError

WriteLines = Callable[..., Path]
# Zero-width space, byte order mark, soft hyphen, control character, variation selector, and two empty letters.
INVISIBLE = ["\u200b", "\ufeff\ufeff", "\u00ad", "\x07", "\ufe0f", "\u3164", "\u2800"]


@pytest.fixture
def folder(tmp_path: Path, write_lines: WriteLines) -> Path:
    """A dataset in the layout of the XMC repository. Label 1 and instance 1 have no text, and there is a filter."""
    labels = [{"uid": "a", "title": "Chair"}, {"uid": "b", "title": " "}, {"uid": "c", "title": "Paint"}]
    write_lines(tmp_path / "lbl.json", labels)
    instances = [
        {"uid": "x", "title": "one", "target_ind": [0, 1]},
        {"uid": "y", "title": "", "target_ind": [2]},
        {"uid": "z", "title": "three", "target_ind": [1, 2]},
    ]
    write_lines(tmp_path / "trn.json", instances)
    write_lines(tmp_path / "filter_labels_train.txt", ["2 0", "0 2", "1 0", "2 1"])
    return tmp_path


def opened(folder: Path, empty_texts: Any) -> tuple[Dataset, list[str]]:
    notes: list[str] = []
    return open_dataset(folder, empty_texts=empty_texts, note=notes.append), notes


def test_empty_text_is_refused_by_default_and_the_error_names_the_flag(folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"lbl\.json:2: 'title': the text is empty; .* --empty-texts drop or keep"):
        open_dataset(folder)


def test_dropped_texts_leave_with_their_labels_and_filters_and_the_other_rows_are_renumbered(folder: Path) -> None:
    dataset, notes = opened(folder, "drop")
    split = dataset.read_split("train")
    assert dataset.labels.uids.to_pylist() == ["a", "c"]
    assert split.entries.uids.to_pylist() == ["x", "z"]
    assert split.labels.to_csr(2).toarray().tolist() == [[1, 0], [0, 1]]
    assert split.filtered_pairs.tolist() == [[0, 1], [1, 0]]
    assert notes == [
        f"{folder / 'lbl.json'}: 1 of 3 texts are empty; they are dropped (--empty-texts)",
        f"{folder / 'trn.json'}: 1 of 3 texts are empty; they are dropped (--empty-texts)",
    ]


def test_kept_texts_stay_in_their_rows(folder: Path) -> None:
    dataset, notes = opened(folder, "keep")
    split = dataset.read_split("train")
    assert dataset.labels.texts.to_pylist() == ["Chair", "", "Paint"]
    assert split.entries.texts.to_pylist() == ["one", "", "three"]
    assert split.labels.to_csr(3).toarray().tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 1]]
    assert split.filtered_pairs.tolist() == [[0, 2], [1, 0], [2, 0], [2, 1]]
    assert [note.partition("; ")[2] for note in notes] == ["they are kept (--empty-texts)"] * 2


def test_line_without_words_is_dropped_with_its_row_of_the_matrix(tmp_path: Path, write_lines: WriteLines) -> None:
    write_lines(tmp_path / "raw_data" / "train.raw.txt", ["one", " ", "three"])
    write_lines(tmp_path / "raw_data" / "label.raw.txt", ["red", "blue"])
    write_lines(tmp_path / "trn_X_Y.txt", ["3 2", "0:1", "1:1", "1:1"])
    split = opened(tmp_path, "drop")[0].read_split("train")
    assert split.entries.uids.to_pylist() == ["0", "2"]
    assert split.labels.to_csr(2).toarray().tolist() == [[1, 0], [0, 1]]


def test_blank_last_line_of_raw_texts_is_no_text(tmp_path: Path, write_lines: WriteLines) -> None:
    write_lines(tmp_path / "Y.txt", ["Chair", "Paint", ""])
    write_lines(tmp_path / "X.trn.txt", ["one", "two", " ", ""])
    sparse.save_npz(tmp_path / "Y.trn.npz", sparse.csr_matrix([[1, 0], [0, 1]]))
    write_lines(tmp_path / "xclib" / "Y.txt", ["a->Chair", "b->Paint", ""])
    write_lines(tmp_path / "xclib" / "trn_X.txt", ["0->one", "1->two", ""])
    write_lines(tmp_path / "xclib" / "trn_X_Y.txt", ["2 2", "0:1", "1:1", ""])
    write_lines(tmp_path / "bags" / "trn_X_Y.txt", ["2 2", "0:1", "1:1"])
    write_lines(tmp_path / "bags" / "trn_X_Xf.txt", ["2 4", "0:1", "1:1", ""])
    write_lines(tmp_path / "bags" / "lbl_X_Xf.txt", ["2 4", "2:1", "3:1"])
    write_lines(tmp_path / "bags" / "Xf.txt", ["one", "two", "Chair", "Paint", "", ""])
    write_lines(tmp_path / "names" / "train_raw_texts.txt", ["one", "two", ""])
    write_lines(tmp_path / "names" / "train_labels.txt", ["Chair", "Paint"])
    for folder in (tmp_path, tmp_path / "xclib", tmp_path / "bags", tmp_path / "names"):
        dataset, _ = opened(folder, "drop")
        split = dataset.read_split("train")
        assert dataset.labels.texts.to_pylist() == ["Chair", "Paint"]
        assert split.entries.texts.to_pylist() == ["one", "two"]
        assert split.labels.to_csr(2).toarray().tolist() == [[1, 0], [0, 1]]


def test_clicks_with_an_empty_query_are_dropped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": ["red", "blue"], "text": ["Red", "Blue"]}), tmp_path / "labels.parquet")
    clicks = pa.table({"query": ["sky", None, "rose", ""], "label": ["blue", "red", "red", "blue"]})
    pq.write_table(clicks, tmp_path / "train.parquet")
    split = opened(tmp_path, "drop")[0].read_split("train")
    assert split.entries.texts.to_pylist() == ["sky", "rose"]
    assert split.labels.to_csr(2).toarray().tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("text", INVISIBLE)
def test_text_without_a_visible_character_is_empty_in_every_layout(
    tmp_path: Path, write_lines: WriteLines, text: str
) -> None:
    write_lines(tmp_path / "native" / "labels.jsonl", [{"uid": "a", "text": "Chair"}])
    write_lines(tmp_path / "native" / "train.jsonl", [{"text": text, "labels": ["a"]}, {"text": "one", "labels": []}])
    write_lines(tmp_path / "pecos" / "Y.txt", ["Chair"])
    write_lines(tmp_path / "pecos" / "X.trn.txt", [f" {text} ", "one"])
    sparse.save_npz(tmp_path / "pecos" / "Y.trn.npz", sparse.csr_matrix([[1], [0]]))
    write_lines(tmp_path / "names" / "train_raw_texts.txt", [text, "one"])
    write_lines(tmp_path / "names" / "train_labels.txt", ["Chair", ""])
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table({"label": ["a"], "text": ["Chair"]}), tmp_path / "clicks" / "labels.parquet")
    pq.write_table(pa.table({"query": [text, "one"], "label": ["a", "a"]}), tmp_path / "clicks" / "train.parquet")
    for name in ("native", "pecos", "names", "clicks"):
        with pytest.raises(DatasetError, match="the text is empty"):
            open_dataset(tmp_path / name).read_split("train")
        dataset, notes = opened(tmp_path / name, "drop")
        assert dataset.read_split("train").entries.texts.to_pylist() == ["one"]
        assert len(notes) == 1


@pytest.mark.parametrize("text", INVISIBLE)
def test_label_without_a_visible_character_is_empty(tmp_path: Path, write_lines: WriteLines, text: str) -> None:
    write_lines(tmp_path / "labels.jsonl", [{"uid": "a", "text": text}])
    with pytest.raises(DatasetError, match=r"labels\.jsonl:1: 'text': the text is empty"):
        open_dataset(tmp_path)
    write_lines(tmp_path / "labels.jsonl", [{"uid": text, "text": "Chair"}])
    with pytest.raises(DatasetError, match=r"labels\.jsonl:1: 'uid': the uid is empty"):
        open_dataset(tmp_path)
