"""Behaviour that all dataset formats share: recognition, equal data from equal content, filter files, bad folders."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from recollect.trainer.data.dataset import FORMATS, open_dataset
from recollect.trainer.data.split import fingerprint
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]

LABELS = ["gärten", "レンチ", "красный, \u2028 синий"]
TEXTS = {"train": ["a red wrench", "le jardin d'été", "花园 и сад"], "test": ["blue", "green 🌱"]}
POSITIONS = {"train": [[1, 2], [0], [0, 1, 2]], "test": [[2], [0, 1]]}


# Formats whose labels have numbers and texts. The labels of `attentionxml` are names.
UNNAMED = [name for name in FORMATS if name != "attentionxml"]


def write_as(format_name: str, folder: Path, write_lines: WriteLines) -> None:
    """Write the labels, texts and positions above in a format of `UNNAMED`. Uids are row numbers."""
    if format_name == "native":
        write_lines(folder / "labels.jsonl", [{"uid": row, "text": text} for row, text in enumerate(LABELS)])
    if format_name == "xmc":
        write_lines(folder / "lbl.json.gz", [{"uid": str(row), "title": text} for row, text in enumerate(LABELS)])
    if format_name == "pecos":
        write_lines(folder / "Y.txt", LABELS)
    if format_name == "xclib":
        write_lines(folder / "raw_data" / "label.raw.txt", LABELS)
    if format_name == "annif":
        write_lines(folder / "vocab.tsv", [f"<{row}>\t{text}" for row, text in enumerate(LABELS)])
    if format_name == "parquet":
        folder.mkdir()
        pq.write_table(pa.table({"label_uid": range(3), "label_text": LABELS}), folder / "labels.parquet")
    for split, texts in TEXTS.items():
        positions = POSITIONS[split]
        pairs = [(row, label) for row, labels in enumerate(positions) for label in labels]
        short = "trn" if split == "train" else "tst"
        if format_name == "native":
            rows = [{"text": text, "labels": labels} for text, labels in zip(texts, positions, strict=True)]
            write_lines(folder / f"{split}.jsonl", rows)
        if format_name == "xmc":
            rows = [{"title": text, "target_ind": labels} for text, labels in zip(texts, positions, strict=True)]
            write_lines(folder / f"{short}.json.gz", rows)
        if format_name == "pecos":
            write_lines(folder / f"X.{short}.txt", texts)
            ones = np.ones(len(pairs))
            relevance = sparse.csr_matrix((ones, np.array(pairs).T), shape=(len(texts), len(LABELS)))
            sparse.save_npz(folder / f"Y.{short}.npz", relevance)
        if format_name == "xclib":
            write_lines(folder / "raw_data" / f"{split}.raw.txt", texts)
            rows = [" ".join(f"{label}:1.0" for label in labels) for labels in positions]
            write_lines(folder / f"{short}_X_Y.txt", [f"{len(texts)} {len(LABELS)}", *rows])
        if format_name == "annif":
            rows = [f"{text}\t{' '.join(map(str, labels))}" for text, labels in zip(texts, positions, strict=True)]
            write_lines(folder / f"{split}.tsv", rows)
        if format_name == "parquet":
            clicks = pa.table({"query": [texts[row] for row, _ in pairs], "label_uid": [label for _, label in pairs]})
            pq.write_table(clicks, folder / f"{split}.parquet")


@pytest.mark.parametrize("format_name", UNNAMED)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_format_gives_the_same_data(
    tmp_path: Path, write_lines: WriteLines, format_name: str, split: Any
) -> None:
    write_as(format_name, tmp_path / format_name, write_lines)
    dataset = open_dataset(tmp_path / format_name)
    data = dataset.read_split(split)
    assert dataset.format is FORMATS[format_name]
    assert dataset.labels.uids.to_pylist() == ["0", "1", "2"]
    assert dataset.labels.texts.to_pylist() == LABELS
    assert data.entries.uids.to_pylist() == [str(row) for row in range(len(TEXTS[split]))]
    assert data.entries.texts.to_pylist() == TEXTS[split]
    assert label_lists(data) == POSITIONS[split]
    assert data.filtered_pairs.shape == (0, 2)


TEXT_FORMATS = [name for name in UNNAMED if name != "parquet"]


@pytest.mark.parametrize("format_name", TEXT_FORMATS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "mark"])
@pytest.mark.parametrize("end", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
def test_byte_order_mark_and_line_ends_change_nothing(
    tmp_path: Path, write_lines: WriteLines, format_name: str, mark: bytes, end: bytes
) -> None:
    folder = tmp_path / "data"
    write_as(format_name, folder, write_lines)
    write_lines(folder / "filter_labels_train.txt", ["1 2", "2 0"])
    labels, train = open_dataset(folder).labels, open_dataset(folder).read_split("train")
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".npz":
            zipped = path.suffix == ".gz"
            content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
            content = mark + content.replace(b"\n", end)
            path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
    assert open_dataset(folder).labels == labels
    again = open_dataset(folder).read_split("train")
    assert fingerprint(labels, again) == fingerprint(labels, train)
    assert again.filtered_pairs.tolist() == [[1, 2], [2, 0]]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("x\ty".encode("utf-16"), "UTF-16; convert the file, for example with iconv -f UTF-16 -t UTF-8"),
        ("x\ty".encode("utf-16-le"), "UTF-16"),
        ("x\ty".encode("utf-16-be"), "UTF-16"),
        (gzip.compress(b"x\ty", mtime=0), r"gzip; the name must end in \.gz"),
    ],
)
def test_other_encoding_is_refused_by_its_name(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "vocab.tsv").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"vocab\.tsv: expected UTF-8, found {found}"):
        open_dataset(tmp_path)


def test_given_format_name_is_used_instead_of_the_recognised_format(tmp_path: Path, write_lines: WriteLines) -> None:
    write_as("native", tmp_path / "both", write_lines)
    write_lines(tmp_path / "both" / "lbl.json", [{"uid": "x", "title": "only here"}])
    assert open_dataset(tmp_path / "both").labels.texts.to_pylist() == LABELS
    assert open_dataset(tmp_path / "both", "xmc").labels.texts.to_pylist() == ["only here"]


def test_unknown_format_is_refused_and_the_error_lists_known_formats_and_found_files(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("")
    with pytest.raises(DatasetError) as refusal:
        open_dataset(tmp_path)
    assert "found notes.csv; rename the files, or write labels.jsonl and train.jsonl" in str(refusal.value)
    assert all(name in str(refusal.value) for name in FORMATS)


@pytest.mark.parametrize("format_name", UNNAMED)
def test_missing_split_is_refused_and_the_error_names_its_file(
    tmp_path: Path, write_lines: WriteLines, format_name: str
) -> None:
    write_as(format_name, tmp_path / format_name, write_lines)
    for path in (tmp_path / format_name).rglob("*"):
        if "tst" in path.name or "test" in path.name:
            path.unlink()
    with pytest.raises(DatasetError, match=r"te?st.*: expected .*, found|expected .*te?st.*, found"):
        open_dataset(tmp_path / format_name).read_split("test")


@pytest.mark.parametrize("format_name", ["xmc", "pecos", "xclib"])
def test_dropping_unknown_labels_is_refused_in_formats_without_names_of_labels(
    tmp_path: Path, write_lines: WriteLines, format_name: str
) -> None:
    write_as(format_name, tmp_path / "data", write_lines)
    message = rf"--unknown-labels: expected .*\(native, parquet, annif\), found {format_name}; omit the flag"
    with pytest.raises(DatasetError, match=message):
        open_dataset(tmp_path / "data", unknown_labels="drop")


class TestFilterFile:
    @pytest.mark.parametrize(
        "name",
        ["filter_labels_trn.txt", "filter_labels_train.txt.gz", "trn_filter_labels.txt", "train_filter_labels.txt.gz"],
    )
    def test_other_names_are_read(self, tmp_path: Path, write_lines: WriteLines, name: str) -> None:
        write_as("xmc", tmp_path / "data", write_lines)
        write_lines(tmp_path / "data" / name, ["1 2"])
        assert open_dataset(tmp_path / "data").read_split("train").filtered_pairs.tolist() == [[1, 2]]

    def test_file_with_another_name_is_reported(self, tmp_path: Path, write_lines: WriteLines) -> None:
        write_as("xmc", tmp_path / "data", write_lines)
        for name in ("filter_labels_train.txt", "filter_labels_trn.txt", "filter_labels_dev.txt"):
            write_lines(tmp_path / "data" / name, ["1 2"])
        notes = list[str]()
        open_dataset(tmp_path / "data", note=notes.append)
        unused = [f"{tmp_path}/data/filter_labels_{name}.txt: this file is not used; " for name in ("dev", "trn")]
        assert [note[: note.index("filters are")] for note in notes] == unused

    def read(self, folder: Path, write_lines: WriteLines, lines: list[Any]) -> list[list[int]]:
        write_as("xmc", folder / "data", write_lines)
        write_lines(folder / "data" / "filter_labels_train.txt", lines)
        pairs: list[list[int]] = open_dataset(folder / "data").read_split("train").filtered_pairs.tolist()
        return pairs

    @pytest.mark.parametrize("line", ["3 0", "0 -1"])
    def test_filter_pair_out_of_range_is_refused(self, tmp_path: Path, write_lines: WriteLines, line: str) -> None:
        with pytest.raises(DatasetError, match=r"filter_labels_train\.txt:2: pair .* is out of range"):
            self.read(tmp_path, write_lines, ["0 0", line])

    @pytest.mark.parametrize(
        "lines",
        [["0 one"], ["0 1", "2"], ["0 1 2", "0 1 2"], ["1" * 30 + " 0"]],
        ids=["word", "ragged", "three columns", "huge"],
    )
    def test_filter_line_that_is_not_two_integers_is_refused(
        self, tmp_path: Path, write_lines: WriteLines, lines: list[Any]
    ) -> None:
        with pytest.raises(DatasetError, match=r"filter_labels_train\.txt: expected two integers a line"):
            self.read(tmp_path, write_lines, lines)


def test_error_about_a_uid_with_a_line_break_is_one_line(tmp_path: Path, write_lines: WriteLines) -> None:
    write_lines(tmp_path / "labels.jsonl", [json.dumps({"uid": "a\nb", "text": "x"})] * 2)
    with pytest.raises(DatasetError) as refusal:
        open_dataset(tmp_path)
    assert "\n" not in str(refusal.value)
