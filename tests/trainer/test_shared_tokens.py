from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.shared_tokens import share_tokens
from recollect.trainer.encoding.tokens import TokenTable
from tests.trainer.conftest import TEXTS


class Waiting(Ranks):
    """One of two ranks, whose broadcasts return at once."""

    def broadcast_object(self, value: Any) -> Any:
        return value


def assert_equal(found: TokenTable, expected: TokenTable) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.starts, expected.starts)
    assert (type(found), found.side, found.pad_id) == (type(expected), expected.side, expected.pad_id)


def test_ranks_map_the_table_that_rank_0_wrote(tiny_encoder: Encoder, tmp_path: Path) -> None:
    expected = tiny_encoder.tokenise(TEXTS, 16, "labels")
    for rank in (0, 1):
        found = share_tokens(tmp_path / "labels", tiny_encoder, TEXTS, 16, "labels", Waiting(rank, 2))
        assert_equal(found, expected)
        assert not found.ids.flags.writeable
        rows = np.array([3, 0, 5])
        np.testing.assert_array_equal(found.batch(rows, "cpu")[0], expected.batch(rows, "cpu")[0])


@pytest.mark.parametrize("rank", [0, 1])
def test_older_table_is_replaced(tiny_encoder: Encoder, tmp_path: Path, rank: int) -> None:
    share_tokens(tmp_path / "queries", tiny_encoder, TEXTS[:3], 16, "queries", Waiting(0, 2))
    share_tokens(tmp_path / "queries", tiny_encoder, TEXTS, 16, "queries", Waiting(0, 2))
    found = share_tokens(tmp_path / "queries", tiny_encoder, TEXTS, 16, "queries", Waiting(rank, 2))
    assert_equal(found, tiny_encoder.tokenise(TEXTS, 16))


def test_single_process_writes_no_file(tiny_encoder: Encoder, tmp_path: Path) -> None:
    assert_equal(
        share_tokens(tmp_path / "queries", tiny_encoder, TEXTS, 16, "queries", ALONE),
        tiny_encoder.tokenise(TEXTS, 16),
    )
    assert not (tmp_path / "queries").exists()
