import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from recollect.trainer.data.dataset import FORMATS, open_dataset
from recollect.trainer.data.split import Split
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]

RELEVANCE = sparse.csr_matrix(np.array([[0, 1, 1], [1, 0, 0]], dtype=np.float32))
UNPICKLED: list[str] = []


@pytest.fixture
def folder(tmp_path: Path, write_lines: WriteLines) -> Path:
    """A dataset of two training texts and three labels."""
    write_lines(tmp_path / "X.trn.txt", ["one", "two"])
    write_lines(tmp_path / "Y.txt", ["red", "green", "blue"])
    sparse.save_npz(tmp_path / "Y.trn.npz", RELEVANCE)
    return tmp_path


def read(folder: Path) -> Split:
    return open_dataset(folder).read_split("train")


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        ("X.trn.txt", "Y.txt"),
        ("trn_X.txt", "label_map.txt"),
        ("train_raw_texts.txt", "output-items.txt"),
        ("raw/trn_X.txt", "raw/Y.txt"),
    ],
)
def test_all_known_file_names_are_recognised(folder: Path, texts: str, labels: str) -> None:
    (folder / "raw").mkdir()
    (folder / "X.trn.txt").rename(folder / texts)
    (folder / "Y.txt").rename(folder / labels)
    dataset = open_dataset(folder)
    assert dataset.format is FORMATS["pecos"]
    assert dataset.labels.texts.to_pylist() == ["red", "green", "blue"]
    assert dataset.read_split("train").entries.texts.to_pylist() == ["one", "two"]
    assert label_lists(dataset.read_split("train")) == [[1, 2], [0]]


def test_only_the_character_line_feed_ends_a_line(folder: Path, write_lines: WriteLines) -> None:
    text = "été \u2028 花\u2029園\u0085 \x1c\x1d\x0b\x0c "
    write_lines(folder / "X.trn.txt", [text, "carriage return\r"])
    assert read(folder).entries.texts.to_pylist() == [text, "carriage return"]


def test_unsorted_repeated_and_zero_matrix_entries_become_sorted_label_lists(folder: Path) -> None:
    entries = (np.array([1, 1, 1, 0, 1]), np.array([2, 1, 2, 0, 0]), np.array([0, 4, 5]))
    sparse.save_npz(folder / "Y.trn.npz", sparse.csr_matrix(entries, shape=(2, 3)))
    assert label_lists(read(folder)) == [[1, 2], [0]]


@pytest.mark.parametrize(("name", "line", "blank"), [("X.trn.txt", 2, ""), ("Y.txt", 3, " \t ")])
def test_blank_line_is_refused_because_it_would_shift_rows(
    folder: Path, write_lines: WriteLines, name: str, line: int, blank: str
) -> None:
    write_lines(folder / name, ["text"] * (line - 1) + [blank])
    with pytest.raises(DatasetError, match=rf"{name}:{line}: the text is empty"):
        read(folder)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4)])
def test_relevance_matrix_of_wrong_shape_is_refused(folder: Path, shape: tuple[int, int]) -> None:
    sparse.save_npz(folder / "Y.trn.npz", sparse.csr_matrix(shape))
    complaint = rf"Y\.trn\.npz: expected 2 x 3 \(the lines of X\.trn\.txt x labels\), found {shape[0]} x {shape[1]}"
    with pytest.raises(DatasetError, match=complaint):
        read(folder)


class Pickled:
    """An object that appends to `UNPICKLED` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UNPICKLED.append, ("boom",)


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **({"format": b"csr", "shape": (2, 3), "data": [1], "indices": [0], "indptr": [0, 1, 1]} | arrays))
    return file.getvalue()


NO_MATRIX = {
    "text": b"0:1 2:1\n",
    "cut off": npz()[:-30],
    "unknown format": npz(format=b"zzz"),
    "negative column": npz(indices=[-1]),
    "column out of range": npz(indices=[3]),
    "pointers past the end": npz(indptr=[0, 10**9, 1]),
    "pointers that fall": npz(data=[1, 1], indices=[0, 1], indptr=[0, 2, 1]),
}


@pytest.mark.parametrize("content", NO_MATRIX.values(), ids=NO_MATRIX)
def test_relevance_file_that_is_not_a_sparse_matrix_is_refused(folder: Path, content: bytes) -> None:
    (folder / "Y.trn.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"Y\.trn\.npz: expected a sparse matrix as scipy\.sparse\.save_npz writes"):
        read(folder)


@pytest.mark.parametrize(
    "content", [npz(data=np.array([Pickled()], dtype=object)), pickle.dumps(Pickled())], ids=["as values", "bare"]
)
def test_pickled_object_in_a_relevance_file_is_refused_and_not_unpickled(folder: Path, content: bytes) -> None:
    (folder / "Y.trn.npz").write_bytes(content)
    with pytest.raises(DatasetError, match="expected a sparse matrix"):
        read(folder)
    assert UNPICKLED == []
