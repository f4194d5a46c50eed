import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.trainer.data.dataset import check_uids
from recollect.trainer.data.split import Entries, Split, SplitBuilder, fingerprint
from recollect.trainer.errors import DatasetError

LABELS = [("red", "Red"), ("green", "Green")]
ROWS = [("a", "été", [1, 0]), ("b", "花園", []), ("c", "third", [1])]


def entries(rows: list[tuple[str, str]]) -> Entries:
    uids, texts = zip(*rows, strict=True)
    return Entries(pa.array(uids, pa.large_string()), pa.array(texts, pa.large_string()))


def split_of(rows: list[tuple[str, str, list[int]]], filtered: list[list[int]] | None = None) -> Split:
    builder = SplitBuilder()
    for row in rows:
        builder.append(*row)
    pairs = np.array(filtered or [], dtype=np.int64).reshape(-1, 2)
    return dataclasses.replace(builder.build(), filtered_pairs=pairs)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 9)), max_size=20))
def test_split_builder_sorts_the_labels_of_a_row_and_removes_duplicates(rows: list[list[int]]) -> None:
    split = split_of([(str(number), "t", labels) for number, labels in enumerate(rows)])
    assert len(split) == len(split.labels) == len(rows)
    assert [split.labels.to_csr(10)[row].indices.tolist() for row in range(len(rows))] == [
        sorted(set(labels)) for labels in rows
    ]


@pytest.mark.parametrize("rows", [0, 2, 100])
def test_head_of_a_split_contains_its_first_rows(rows: int) -> None:
    head = split_of(ROWS, filtered=[[0, 1], [1, 1], [2, 0]]).head(rows)
    kept = [pair for pair in [[0, 1], [1, 1], [2, 0]] if pair[0] < rows]
    assert fingerprint(entries(LABELS), head) == fingerprint(entries(LABELS), split_of(ROWS[:rows], kept))
    assert head.filtered_pairs.tolist() == kept


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_split_without_some_rows_and_labels_has_the_other_pairs_under_new_numbers(data: st.DataObject) -> None:
    labels = 5
    sets = data.draw(st.lists(st.sets(st.integers(0, labels - 1)), min_size=1, max_size=8))
    filters = data.draw(st.lists(st.sets(st.integers(0, labels - 1)), min_size=len(sets), max_size=len(sets)))
    rows = np.array(data.draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets))))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=labels, max_size=labels)))
    pairs = [[row, label] for row, own in enumerate(filters) for label in sorted(own)]
    whole = split_of([(f"u{row}", f"t{row}", sorted(own)) for row, own in enumerate(sets)], pairs)

    some = whole.where(rows, kept)

    old_rows, old_labels = np.flatnonzero(rows).tolist(), np.flatnonzero(kept).tolist()
    assert some.entries.uids.to_pylist() == [f"u{row}" for row in old_rows]
    assert some.entries.texts.to_pylist() == [f"t{row}" for row in old_rows]
    for found, expected in ((some.labels, sets), (some.filtered, filters)):
        named = [[old_labels[label] for label in row] for row in np.split(found.indices, found.indptr[1:-1])]
        assert named[: len(old_rows)] == [sorted(expected[row] & set(old_labels)) for row in old_rows]


@pytest.mark.parametrize("uid", ["a\n", "x\ny", "\t", "\x7f", "a\x00"])
def test_uid_with_a_control_character_is_refused(uid: str) -> None:
    with pytest.raises(DatasetError, match="^file: expected uids without control characters, found .* in row 2; "):
        check_uids(pa.array(["b", uid], pa.large_string()), Path("file"))


@given(st.lists(st.sampled_from("abcdef"), max_size=12))
def test_error_for_a_repeated_uid_names_its_first_two_rows(uids: list[str]) -> None:
    strings = pa.array(uids, pa.large_string())
    again = next((row for row, uid in enumerate(uids) if uid in uids[:row]), None)
    if again is None:
        check_uids(strings, Path("file"))
        return
    first = uids.index(uids[again])
    with pytest.raises(
        DatasetError, match=f"^file: uid '{uids[again]}' occurs twice, in rows {first + 1} and {again + 1};"
    ):
        check_uids(strings, Path("file"))


class TestFingerprint:
    def of(
        self,
        labels: list[tuple[str, str]] = LABELS,
        rows: list[tuple[str, str, list[int]]] = ROWS,
        filtered: list[list[int]] | None = None,
    ) -> str:
        return fingerprint(entries(labels), split_of(rows, filtered))

    def test_every_change_of_content_changes_the_fingerprint(self) -> None:
        changed = {
            self.of(),
            self.of(labels=[("red", "Red"), ("verde", "Green")]),
            self.of(labels=[("red", "Red"), ("green", "Verde")]),
            self.of(labels=LABELS[::-1]),
            self.of(rows=ROWS[:2]),
            self.of(rows=ROWS[::-1]),
            self.of(rows=[("a", "été", [1]), ("b", "花園", [0]), ("c", "third", [1])]),
            self.of(rows=[("a", "été ", [1, 0]), *ROWS[1:]]),
            self.of(rows=[("ab", "été", [1, 0]), ("", "花園", []), ("c", "third", [1])]),
            self.of(filtered=[[0, 1]]),
            self.of(filtered=[[1, 0]]),
        }
        assert len(changed) == 11
