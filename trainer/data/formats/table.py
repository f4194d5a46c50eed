"""A table: a file of CSV, TSV, JSON lines or Parquet, or a data frame, whose rows are texts with labels.

Flags name the columns (`recollect.core.table_files`). The labels are those of a second table, with the columns uid and
text. Without it, they are the different values of the column of labels, sorted: a value is the uid and the text of its
label. A row without a label is left out. The uid of a text is its row number, from 0, without a column of uids.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from recollect.core.table_files import LabelledText, Table, TextColumns, open_frame, open_table, read_label_rows
from recollect.core.table_guesses import several_in_one
from recollect.core.texts import is_blank
from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.references import LabelReferences
from recollect.trainer.data.split import Entries, LabelColumns, LabelSets, Split, SplitName, StringColumn
from recollect.trainer.errors import DatasetError
from recollect.trainer.settings import DatasetSettings

EXPECTED = "a file that ends in .csv, .tsv, .jsonl or .parquet"
TEXT_FIELDS: tuple[str, ...] = ()


@dataclass
class TableFormat:
    """The reader of one table. It has the functions and constants of a format (`recollect.trainer.data.dataset`)."""

    table: Table
    columns: TextColumns
    labels: Path | None
    EXPECTED: str = EXPECTED
    TEXT_FIELDS: tuple[str, ...] = TEXT_FIELDS
    _read: Split | None = field(default=None, init=False)  # the rows, which have the texts of both splits

    @classmethod
    def of(cls, settings: DatasetSettings) -> TableFormat:
        """Open the table that settings name.

        Raises:
            DatasetError: If it cannot be read, or the flags name no columns of it.
            OSError: If the file does not open.
        """
        if settings.frame is None:
            table = open_table(settings.dataset, settings.named_columns, DatasetError)
        else:
            table = open_frame(settings.frame, str(settings.dataset), DatasetError)
        columns = TextColumns.of(settings, table, settings.command(), DatasetError)
        return cls(table, columns, settings.labels)

    def recognises(self, folder: Path) -> bool:
        return folder.is_file()

    def read_labels(self, folder: Path, rule: TextRule) -> tuple[Path, Entries]:
        if self.labels is not None:
            labels = LabelColumns()
            table = open_table(self.labels, ["uid", "text"], DatasetError)
            for row in read_label_rows(table, self.columns.separator, DatasetError):
                labels.append(rule.check(row.uid, row.where), rule.check(row.text, row.where), row.fields)
            return self.labels, labels.build()
        positions = dict[str, int]()
        split = self._read_rows(
            folder, rule, lambda row: [positions.setdefault(each, len(positions)) for each in row.labels]
        )
        uids = sorted(positions)
        if joined := several_in_one(uids):
            rule.note(
                f"{self.table.name}: many labels contain {joined!r}; if it is between labels, give --label-separator "
                f"{joined!r}"
            )
        new = np.empty(len(uids), dtype=np.int64)
        new[[positions[uid] for uid in uids]] = np.arange(len(uids))
        rows, old = split.labels.pairs().T
        self._read = Split(split.entries, LabelSets.of_pairs(_distinct(rows, new[old]), len(split)))
        names = pa.array(uids, type=pa.large_string())
        return folder, Entries(names, names)

    def read_split(self, folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
        if self._read is None:
            references = LabelReferences(labels, folder, rule)
            self._read = self._read_rows(folder, rule, lambda row: references.find(row.labels, "labels", row.where))
            references.report()
        return folder, self._read

    def _read_rows(self, path: Path, rule: TextRule, find: Callable[[LabelledText], list[int]]) -> Split:
        """Read all rows. Rows with the same uid are joined, and those without a label are left out, and reported."""
        column = self.columns.uid
        uids, texts = StringColumn(), StringColumn()
        of_uid = dict[str, tuple[int, bytes]]()  # the row of each uid, with a hash of its text
        rows, labels = array.array("q"), array.array("q")
        count, read, without, has_several = 0, 0, list[str](), False
        for number, each in enumerate(self.columns.read(self.table, DatasetError)):
            read += 1
            if not each.labels and is_blank(each.text):
                without.append(each.where)
                continue
            text = rule.check(each.text, each.where)
            uid, row = str(number) if each.uid is None else rule.check(each.uid, each.where), count
            if each.uid is not None:
                digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                row, known = of_uid.setdefault(uid, (count, digest))
                if digest != known:
                    raise DatasetError(
                        f"{each.where}: {column}: expected the same text in all rows of {uid!r}, found another one: "
                        f"{text[:60]!r}; correct it, or omit --id-column"
                    )
            if row == count:
                uids.append(uid)
                texts.append(text)
                count += 1
            found = find(each)
            has_several |= len(each.labels) > 1
            if not found:
                without.append(each.where)
            labels.extend(found)
            rows.extend([row] * len(found))
        pairs = _distinct(np.array(rows, dtype=np.int64), np.array(labels, dtype=np.int64))
        if not len(pairs):
            found_rows = f"{read:,} rows without one" if read else "no row"
            raise DatasetError(
                f"{self.table.name}: expected rows with a label in column {self.columns.label}, found {found_rows}"
            )
        if without:
            rule.note(
                f"{self.table.name}: {len(without):,} of {read:,} rows have no label; they are left out "
                f"(the first: {without[0]})"
            )
        if self.columns.separator is not None and not has_several:
            rule.note(f"{self.table.name}: --label-separator {self.columns.separator!r}: no row has several labels")
        split = Split(Entries(uids.build(), texts.build()), LabelSets.of_pairs(pairs, count))
        labelled = np.diff(split.labels.indptr) > 0
        return split if labelled.all() else split.where(labelled, np.ones(int(pairs[:, 1].max()) + 1, dtype=bool))


def _distinct(rows: Int[np.ndarray, " pair"], labels: Int[np.ndarray, " pair"]) -> Int[np.ndarray, "distinct 2"]:
    """The different pairs (row, label), sorted."""
    return np.unique(np.stack([rows, labels], axis=1), axis=0)
