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


@pytest.mark.parametrize("uid", ["a\n", "x\ny", "\t", "\x7f", "a\x00"])
def test_uid_with_a_control_character_is_refused(uid: str) -> None:
    with pytest.raises(DatasetError, match="^file: expected uids without control characters, found .* in row 2; "):
        check_uids(pa.array(["b", uid], pa.large_string()), Path("file"))


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
