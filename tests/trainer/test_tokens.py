import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from recollect.trainer.encoding.tokens import TokenTable, VectorTable, batches_by_length
from tests.trainer.conftest import TinyEncoder

TEXTS = ["quick Brown fox", "x", "lazy dog " * 30, "Café naïve ABC", "garden chair red blue paint", "", "the lawn"]
MAX_LENGTH = 9


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of one text. Long texts lose tokens before the last special token."""
    tokenizer.no_truncation()
    ids: list[int] = tokenizer.encode(text).ids
    return ids if len(ids) <= MAX_LENGTH else [*ids[: MAX_LENGTH - 1], ids[-1]]


def rows_of(table: TokenTable) -> list[list[int]]:
    return [table.ids[start:stop].tolist() for start, stop in zip(table.starts, table.starts[1:], strict=False)]


@pytest.fixture
def tokenizer(tiny_roberta: TinyEncoder) -> Tokenizer:
    """A copy of the tokenizer, so that tests can change its truncation. Its padding id is 1."""
    return Tokenizer.from_str(tiny_roberta.tokenizer.to_str())


@pytest.fixture
def table(tokenizer: Tokenizer) -> TokenTable:
    return TokenTable.of(TEXTS, tokenizer, MAX_LENGTH, pad_id=1)


class TestTokenTable:
    @pytest.mark.parametrize("chunk", [3, 8_192])
    @pytest.mark.parametrize("as_arrow", [False, True], ids=["list", "arrow"])
    def test_token_ids_do_not_depend_on_the_chunk_size(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, chunk: int, as_arrow: bool
    ) -> None:
        monkeypatch.setattr("recollect.trainer.encoding.tokens._CHUNK_TEXTS", chunk)
        texts = pa.array(TEXTS, type=pa.large_string()) if as_arrow else TEXTS
        table = TokenTable.of(texts, tokenizer, MAX_LENGTH, pad_id=1)
        expected = [ids_of(tokenizer, text) for text in TEXTS]
        assert rows_of(table) == expected
        assert len(table) == len(TEXTS)
        assert table.lengths.tolist() == [len(ids) for ids in expected]
        assert max(table.lengths) == MAX_LENGTH

    @pytest.mark.parametrize("rows", [[2, 0], [6, 1, 3, 1]])
    def test_batch_is_padded_to_its_longest_row_with_the_pad_id(self, table: TokenTable, rows: list[int]) -> None:
        input_ids, mask, *_ = table.batch(np.array(rows), "cpu")
        assert table.lengths_of(np.array(rows)).tolist() == table.lengths[rows].tolist()
        longest = int(table.lengths[rows].max())
        every = rows_of(table)
        assert input_ids.tolist() == [every[row] + [1] * (longest - len(every[row])) for row in rows]
        assert mask.tolist() == [[int(place < len(every[row])) for place in range(longest)] for row in rows]
        assert (input_ids.dtype, mask.dtype) == (torch.int64, torch.int64)

    @pytest.mark.parametrize(("start", "stop"), [(2, 5), (3, 99), (4, 4)])
    def test_slice_of_a_token_table_shares_the_ids(self, table: TokenTable, start: int, stop: int) -> None:
        part = table[start:stop]
        assert rows_of(part) == rows_of(table)[start:stop]
        assert part.ids is table.ids
        if len(part):
            *whole, side, numbers = table.batch(np.arange(start, start + len(part)), "cpu")
            *found, own_side, own_numbers = part.batch(np.arange(len(part)), "cpu")
            torch.testing.assert_close([*found, own_numbers], [*whole, numbers], rtol=0, atol=0)
            assert own_side == side


def test_batch_of_a_vector_table_holds_the_rows_with_the_requested_numbers() -> None:
    table = VectorTable(torch.arange(12.0).reshape(6, 2))
    assert (len(table), table.lengths.tolist()) == (6, [1] * 6)
    assert table.lengths_of(np.array([4, 0, 4])).tolist() == [1, 1, 1]
    assert table.batch(np.array([4, 0, 4]), "cpu")[0].tolist() == [[8, 9], [0, 1], [8, 9]]
    assert table[2:5].batch(np.array([1]), "cpu")[0].tolist() == [[6, 7]]


def test_batches_contain_the_row_numbers_and_whether_rows_are_queries_or_labels(tokenizer: Tokenizer) -> None:
    for table in (VectorTable(torch.zeros(7, 2), "labels"), TokenTable.of(TEXTS, tokenizer, MAX_LENGTH, 1, "labels")):
        side, numbers = table[1:][2:].batch(np.array([3, 0]), "cpu")[-2:]
        assert (side, numbers.tolist()) == ("labels", [6, 3])


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 40), st.integers(1, 40))
def test_batches_by_length_contain_each_row_once_longest_first_within_both_limits(
    lengths: list[int], batch_tokens: int, batch_rows: int
) -> None:
    batches = [rows.tolist() for rows in batches_by_length(np.array(lengths, dtype=np.int64), batch_tokens, batch_rows)]
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    in_order = [lengths[row] for rows in batches for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    assert all(len(rows) == 1 or len(rows) * lengths[rows[0]] <= batch_tokens for rows in batches)
    assert all(1 <= len(rows) <= batch_rows for rows in batches)


@pytest.mark.parametrize(("batch_tokens", "sizes"), [(4, [1] * 7), (14, [2, 2, 2, 1]), (15, [3, 3, 1]), (99, [7])])
def test_batches_by_length_are_as_large_as_batch_tokens_allows(batch_tokens: int, sizes: list[int]) -> None:
    assert [len(rows) for rows in batches_by_length(np.full(7, 5), batch_tokens)] == sizes


@pytest.mark.parametrize(("device", "sizes"), [("cpu", [1, 3, 4]), ("cuda", [8])])
def test_gpu_has_fewer_batches_with_more_padding(device: str, sizes: list[int]) -> None:
    lengths = np.array([400, 100, 99, 98, 30, 30, 29, 28])
    assert [len(rows) for rows in batches_by_length(lengths, 32_768, device=device)] == sizes
