"""A true label has a relevance above 0, in every layout that has values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]
# Row, label and value of each entry. The entries of row 1 and label 0 add up to 0.
ENTRIES = [(0, 0, 1.0), (0, 1, -2.0), (0, 2, 0.0), (1, 0, 1.5), (1, 0, -1.5), (1, 2, 0.25), (2, 1, -1.0), (2, 1, 3.0)]


def write_layout(layout: str, folder: Path, write_lines: WriteLines, entries: list[tuple[int, int, float]]) -> Path:
    """Write a dataset of three texts and three labels with these entries. Return the file with the entries."""
    rows, columns, values = (np.array(each) for each in zip(*entries, strict=True))
    write_lines(folder / "Y.txt", ["red", "green", "blue"])
    if layout == "pecos":
        write_lines(folder / "X.trn.txt", ["one", "two", "three"])
        sparse.save_npz(folder / "Y.trn.npz", sparse.coo_matrix((values, (rows, columns)), shape=(3, 3)))
        return folder / "Y.trn.npz"
    of_row = [[(column, value) for row, column, value in entries if row == each] for each in range(3)]
    if layout == "xclib":
        write_lines(folder / "trn_X.txt", ["one", "two", "three"])
        lines = [" ".join(f"{column}:{value}" for column, value in row) for row in of_row]
        return write_lines(folder / "trn_X_Y.txt", ["3 3", *lines])
    if layout == "xmc":
        write_lines(folder / "lbl.json", [{"uid": name, "title": name} for name in ("red", "green", "blue")])
        names = ("one", "two", "three")
        records = [
            {"title": name, "target_ind": [column for column, _ in row], "target_rel": [value for _, value in row]}
            for name, row in zip(names, of_row, strict=True)
        ]
        return write_lines(folder / "trn.json", records)
    names = pa.array(["red", "green", "blue"])
    pq.write_table(pa.table({"label": names, "text": names}), folder / "labels.parquet")
    clicks = {"query": pa.array(["one", "two", "three"]).take(pa.array(rows)), "label": names.take(pa.array(columns))}
    pq.write_table(pa.table(clicks | {"weight": values}), folder / "train.parquet")
    return folder / "train.parquet"


@pytest.mark.parametrize("layout", ["pecos", "xclib", "xmc", "parquet"])
def test_a_true_label_has_a_value_above_0_and_one_line_counts_the_others(
    tmp_path: Path, write_lines: WriteLines, layout: str
) -> None:
    path, notes = write_layout(layout, tmp_path, write_lines, ENTRIES), list[str]()
    split = open_dataset(tmp_path, note=notes.append).read_split("train")
    assert label_lists(split) == [[0], [2], [1]]
    assert notes == [f"{path}: 3 of 6 relevance values are 0 or less; these labels are not true labels"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("layout", ["pecos", "xclib", "xmc", "parquet"])
def test_a_value_that_is_not_finite_is_refused_with_its_row(
    tmp_path: Path, write_lines: WriteLines, layout: str, value: float
) -> None:
    path = write_layout(layout, tmp_path, write_lines, [(0, 0, 1.0), (1, 1, value), (2, 0, 1.0)])
    where = {"pecos": ": row 2: ", "xclib": ":3: ", "xmc": ":2: 'target_rel': ", "parquet": ": row 2: 'weight': "}
    with pytest.raises(DatasetError) as refused:
        open_dataset(tmp_path).read_split("train")
    assert str(refused.value).startswith(f"{path}{where[layout]}expected ")


@pytest.mark.parametrize("values", [[1], [1, "1"], [1, None], 1, [[1, 1]]])
def test_values_that_do_not_fit_the_positions_are_refused(
    tmp_path: Path, write_lines: WriteLines, values: object
) -> None:
    write_lines(tmp_path / "lbl.json", [{"uid": name, "title": name} for name in ("red", "green")])
    write_lines(tmp_path / "trn.json", [{"title": "one", "target_ind": [0, 1], "target_rel": values}])
    with pytest.raises(DatasetError, match=r"trn\.json:1: expected 'target_rel' to be a list of 2 numbers"):
        open_dataset(tmp_path).read_split("train")


def test_small_integers_are_added_without_overflow(tmp_path: Path, write_lines: WriteLines) -> None:
    write_lines(tmp_path / "Y.txt", ["red"])
    write_lines(tmp_path / "X.trn.txt", ["one"])
    values = np.full(3, 100, dtype=np.int8)
    sparse.save_npz(tmp_path / "Y.trn.npz", sparse.coo_matrix((values, ([0] * 3, [0] * 3)), shape=(1, 1)))
    assert label_lists(open_dataset(tmp_path).read_split("train")) == [[0]]
