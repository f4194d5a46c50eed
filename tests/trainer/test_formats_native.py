import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.texts import is_blank
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.split import Split
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]

LABELS = [{"uid": "red", "text": "Red"}, {"uid": "green", "text": "Green"}, {"uid": "blue", "text": "Blue"}]


@pytest.fixture
def read(tmp_path: Path, write_lines: WriteLines) -> Callable[..., Split]:
    """Returns a function that writes three labels and the given training lines, and reads the train split."""

    def read_train(*lines: Any, name: str = "train.jsonl", labels: list[Any] = LABELS) -> Split:
        write_lines(tmp_path / "labels.jsonl", labels)
        write_lines(tmp_path / name, list(lines))
        return open_dataset(tmp_path).read_split("train")

    return read_train


Read = Callable[..., Split]


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_plain_and_gzip_files_give_equal_splits(read: Read, name: str) -> None:
    split = read({"uid": "a", "text": "one", "labels": [0]}, {"uid": "b", "text": "two", "labels": [2, 1]}, name=name)
    assert split.entries.uids.to_pylist() == ["a", "b"]
    assert split.entries.texts.to_pylist() == ["one", "two"]
    assert label_lists(split) == [[0], [1, 2]]


def test_one_row_may_mix_label_positions_and_uids(read: Read) -> None:
    assert label_lists(read({"text": "t", "labels": ["blue", 0]}, {"text": "u", "labels": ["green"]})) == [[0, 2], [1]]


def test_excluded_labels_of_a_row_are_filtered_pairs_and_a_filter_file_adds_others(
    read: Read, tmp_path: Path, write_lines: WriteLines
) -> None:
    write_lines(tmp_path / "filter_labels_train.txt", ["2 1", "0 2"])
    rows = [{"text": "t", "labels": [0], "exclude": ["blue", 1, 1]}, {"text": "u", "labels": []}]
    split = read(*rows, {"text": "v", "labels": [1], "exclude": [1]})
    assert label_lists(split) == [[0], [], [1]]
    assert split.filtered_pairs.tolist() == [[0, 1], [0, 2], [2, 1]]


def test_text_fields_replace_the_field_text(read: Read, tmp_path: Path) -> None:
    rows = [{"uid": "r", "text": "Red", "long": "A colour"}]
    read({"text": "t", "long": "u", "labels": []}, labels=rows)
    dataset = open_dataset(tmp_path, text_fields=("long", "text"))
    assert dataset.labels.texts.to_pylist() == ["A colour Red"]
    assert dataset.read_split("train").entries.texts.to_pylist() == ["u t"]


def test_text_field_that_no_record_has_is_refused(read: Read, tmp_path: Path) -> None:
    read({"text": "t", "long": "u", "labels": []})  # the labels have no field `long`
    assert open_dataset(tmp_path, text_fields=("text", "long")).read_split("train").entries.texts.to_pylist() == ["t u"]
    with pytest.raises(DatasetError, match=r"no record has the field lnog; found labels, long, text, uid"):
        open_dataset(tmp_path, text_fields=("text", "lnog")).read_split("train")


def test_labels_keep_their_fields_and_wrong_parents_are_two_notes(read: Read, tmp_path: Path) -> None:
    long, name = "word " * 5_000, {"name": "Red", "names": {"de": "Rot"}}
    rows = [
        {"uid": "r", "title": long, "notation": "1", "parents": ["g", "no", "nor"], "year": [1, 2.5], **name},
        {"uid": "g", "title": "Green", "parents": ["r"], "groups": []},
    ]
    write = [json.dumps(row) for row in rows]
    with pytest.raises(DatasetError, match="expected the field 'text'"):
        read(labels=write)
    notes = list[str]()
    labels = open_dataset(tmp_path, text_fields=("title", "notation"), note=notes.append).labels
    assert labels.texts.to_pylist() == [f"{long} 1", "Green"]
    assert labels.fields is not None
    first, second = map(json.loads, labels.fields.to_pylist())
    assert first == name | {"notation": "1", "parents": ["g", "no", "nor"], "year": [1, 2.5]}
    assert second == {"parents": ["r"]}
    path = tmp_path / "labels.jsonl"
    assert notes == [
        f"{path}: 2 parents are no labels (the first: 'no' of 'r'); a filter ignores them",
        f"{path}: expected parents without a cycle, found 'r' < 'g' < 'r'; each of these labels is below the others",
    ]


def test_unknown_labels_are_dropped_with_a_note(read: Read, tmp_path: Path) -> None:
    read({"text": "t", "labels": ["red"]}, {"text": "u", "labels": ["red"]})
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"text": "v", "labels": ["mauve", "red"], "exclude": ["teal"]}\n')
    notes = list[str]()
    split = open_dataset(tmp_path, unknown_labels="drop", note=notes.append).read_split("train")
    assert label_lists(split) == [[0], [0], [0]]
    path = tmp_path / "train.jsonl"
    assert notes == [f"{path}: 2 names of labels are unknown; they are dropped (the first: {path}:3: mauve)"]


INTEGERS = [{"uid": uid, "text": f"number {uid}"} for uid in (3, "1", 2, "red")]


def test_integer_is_the_uid_with_its_digits(read: Read) -> None:
    split = read({"uid": 100, "text": "t", "labels": ["3", 1], "exclude": [2]}, labels=INTEGERS)
    assert split.entries.uids.to_pylist() == ["100"]
    assert label_lists(split) == [[0, 1]]
    assert split.filtered_pairs.tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"labels": [0]}, "the label 0 is no uid; as a position, it is the label '3', but .*: write uids"),
        ({"labels": [], "exclude": [0]}, "the label 0 is no uid; as a position, it is the label '3'"),
        ({"labels": [4]}, "label uid '4' is unknown; expected one of the 4 uids"),
    ],
)
def test_position_that_may_be_a_wrong_uid_is_refused_with_both_readings(
    read: Read, row: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DatasetError, match=rf"train\.jsonl:1: {complaint}"):
        read({"text": "t"} | row, labels=INTEGERS)


def test_position_is_read_if_uids_that_are_integers_are_no_positions(read: Read) -> None:
    labels = [{"uid": uid, "text": uid} for uid in ("4027089-0", "1021591971")]
    assert label_lists(read({"text": "t", "labels": [1]}, {"text": "u", "labels": [1021591971, 0]}, labels=labels)) == [
        [1],
        [0, 1],
    ]
    with pytest.raises(DatasetError, match="the label 0 is no uid; as a position, it is the label '1021591971'"):
        read({"text": "t", "labels": [0]}, labels=labels[1:])


@pytest.mark.parametrize("missing", [{}, {"uid": None}], ids=["absent", "null"])
def test_missing_uid_becomes_the_row_number(read: Read, missing: dict[str, None]) -> None:
    split = read({"uid": "a", "text": "t", "labels": []}, {"text": "u", "labels": []} | missing)
    assert split.entries.uids.to_pylist() == ["a", "1"]


def test_blank_lines_are_skipped(read: Read) -> None:
    split = read("", {"text": "t", "labels": [0]}, " \t", {"text": "u", "labels": [1]}, "\r")
    assert split.entries.uids.to_pylist() == ["0", "1"]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not is_blank(text)), min_size=1),
    st.booleans(),
)
def test_texts_in_any_script_are_unchanged(texts: list[str], ascii_only: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "labels.jsonl").write_text('{"uid": "l", "text": "l"}\n')
        rows = (json.dumps({"text": text, "labels": []}, ensure_ascii=ascii_only) + "\n" for text in texts)
        (folder / "train.jsonl").write_bytes("".join(rows).encode())
        assert open_dataset(folder).read_split("train").entries.texts.to_pylist() == texts


GOOD = {"text": "t", "labels": [0]}
BAD_LINES: dict[str, tuple[Any, str]] = {
    "broken JSON": ('{"text": ', "expected a JSON object, found '{\"text\": ' .Expecting value"),
    "nested too deep": ('{"text": ' + "[" * 100_000, "expected a JSON object, found "),
    "invalid UTF-8": (b'{"text": "caf\xe9", "labels": []}', "expected UTF-8, found byte 0xe9 at column 14; .*iconv"),
    "lone surrogate": ('{"text": "\\ud800", "labels": []}', "'text': .*surrogate"),
    "empty text": ({"text": "", "labels": []}, "'text': the text is empty"),
    "text missing": ({"title": "t", "labels": []}, r"expected the field 'text', found \['labels', 'title'\]"),
    "text not a string": ({"text": 5, "labels": []}, "'text': expected a string, found int"),
    "labels not a list": ({"text": "t", "labels": "red"}, "expected 'labels' to be a list, found 'red'"),
    "position too large": ({"text": "t", "labels": [0, 3]}, "label position 3 is out of range; expected 0 to 2"),
    "position a bool": ({"text": "t", "labels": [True]}, "expected the uid or the position of a label, found True"),
    "unknown label uid": ({"text": "t", "labels": ["mauve"]}, "label uid 'mauve' is unknown; .*3 uids"),
}


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES.values(), ids=BAD_LINES)
def test_bad_line_is_refused_and_the_error_names_file_and_line(read: Read, line: Any, complaint: str) -> None:
    with pytest.raises(DatasetError, match=rf"train\.jsonl:2: {complaint}|train\.jsonl:2: .*{complaint}"):
        read(GOOD, line)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"text": "t"}, r"expected the field 'uid', found \['text'\]"),
        ({"uid": "l", "text": " "}, "'text': the text is empty"),
        ({"uid": "l", "text": "t", "score": 1}, "score: expected another name of a field, this one is reserved"),
        ({"uid": "l", "text": "t", "groups": "a"}, "groups: Input should be a valid list; found 'a'"),
        ({"uid": "l", "text": "t", "names": {"en us": "t"}}, "names.en us: String should match pattern"),
        ('{"uid": "l", "text": "t", "names": {"en": "a", "en": "b"}}', ".*'en'"),
        (
            {"uid": "l", "text": "t", "note": "a" * 20_000},
            "fields: expected at most 20,000 bytes of JSON, found 20,011",
        ),
    ],
)
def test_bad_label_is_refused_and_the_error_names_file_and_line(read: Read, line: Any, complaint: str) -> None:
    with pytest.raises(DatasetError, match=rf"labels\.jsonl:4: {complaint}"):
        read(GOOD, labels=[*LABELS, line])


def test_duplicate_instance_uid_is_refused_and_the_error_names_both_rows(read: Read) -> None:
    rows = [{"uid": uid, "text": "t", "labels": []} for uid in "abcdbc"]
    with pytest.raises(DatasetError, match=r"train\.jsonl: uid 'b' occurs twice, in rows 2 and 5"):
        read(*rows)


def test_truncated_gzip_is_refused_and_the_error_names_its_last_complete_line(
    tmp_path: Path, write_lines: WriteLines
) -> None:
    write_lines(tmp_path / "labels.jsonl", LABELS)
    rng = np.random.default_rng(0)  # random, so that half of the compressed file holds some complete lines
    path = write_lines(tmp_path / "train.jsonl.gz", [{"text": rng.bytes(200).hex(), "labels": []} for _ in range(400)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DatasetError, match=r"train\.jsonl\.gz: the gzip stream breaks after line \d\d+ "):
        open_dataset(tmp_path).read_split("train")


@pytest.mark.parametrize("content", [b"plain text", b"\x1f\x8b\x08\x00 but no more of it"])
def test_gz_file_without_gzip_content_is_refused(tmp_path: Path, write_lines: WriteLines, content: bytes) -> None:
    write_lines(tmp_path / "labels.jsonl", LABELS)
    (tmp_path / "train.jsonl.gz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"train\.jsonl\.gz: (the gzip stream breaks|expected at least one)"):
        open_dataset(tmp_path).read_split("train")
