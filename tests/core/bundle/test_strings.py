from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.bundle.strings import StringTable, write_table

SCRIPTS = ["plain", "naïve café", "Ελληνικά", "Русский", "עברית", "العربية", "हिन्दी", "ไทย", "中文", "日本語", "한국어"]
SCRIPTS += ["👩‍👩‍👧 🏳️‍🌈", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "a\0b\r\n\tc\u2028d", "e\u0301 is not é", "\ufeff", "\U0010ffff"]

texts = st.text(st.characters(exclude_categories=["Cs"]))


def test_strings_in_any_script_are_read_back_unchanged(tmp_path: Path) -> None:
    assert list(write_table(tmp_path, "texts", SCRIPTS)) == SCRIPTS


def test_strings_from_a_stream_are_read_back(tmp_path: Path) -> None:
    write_table(tmp_path, "texts", (f"row {row}" * (row % 4) for row in range(50_000)))
    table = StringTable.open(tmp_path, "texts", 50_000)
    assert len(table) == 50_000
    assert [table[row] for row in (0, 1, 49_999)] == ["", "row 1", "row 49999" * 3]
    with pytest.raises(IndexError):
        table[50_000]


@settings(max_examples=60, deadline=None)
@given(strings=st.lists(texts, max_size=30, unique=True), others=st.lists(st.text(), max_size=10))
def test_find_returns_the_same_rows_as_a_dict(strings: list[str], others: list[str]) -> None:
    rows = {string: row for row, string in enumerate(strings)}
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder), "uids", strings)
        order = table.sorted_rows()
        assert list(table) == strings
        for wanted in [*strings, *others, "\ud800", "app\udfff"]:
            assert table.find(wanted, order) == rows.get(wanted)
