"""Files that are written block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.core.system.files import save_rows


def test_rows_are_saved_as_an_array_in_the_given_type(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float64).reshape(4, 3)
    mapped = save_rows(tmp_path / "rows.npy", (4, 3), np.dtype(np.float16), iter([rows[:1], rows[:0], rows[1:]]))
    np.testing.assert_array_equal(mapped, rows)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), mapped)
    assert mapped.dtype == np.float16


def test_full_disk_is_an_error_that_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        save_rows(Path("/dev/full"), (4, 3), np.dtype(np.float32), iter([np.zeros((4, 3))]))
