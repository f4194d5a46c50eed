"""Texts as token ids: tokenised once, addressed by row, padded only as far as a batch needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from trainer.heads.adapter import Side

Texts: TypeAlias = Sequence[str] | pa.LargeStringArray

# Texts handed to the tokenizer at a time: it answers with Python objects, many times the size of their ids.
_WINDOW_TEXTS = 8_192

# The share of a batch that may be padding, and the tokens below which that does not matter.
_PADDING, _FEWEST_TOKENS = 0.1, 128


@dataclass(frozen=True)
class TokenTable:
    """Row i, number `first` + i of all, holds the ids `ids[starts[i] : starts[i + 1]]`, special tokens included."""

    ids: Int[np.ndarray, " token"]
    starts: Int[np.ndarray, " pointer"]
    pad_id: int
    side: Side = "queries"
    first: int = 0

    @classmethod
    def of(cls, texts: Texts, tokenizer: Tokenizer, max_length: int, pad_id: int, side: Side = "queries") -> TokenTable:
        """Tokenise texts, each cut at `max_length` tokens."""
        tokenizer.enable_truncation(max_length)
        ids, lengths = [np.empty(0, np.int32)], [0]
        for start in range(0, len(texts), _WINDOW_TEXTS):
            encodings = tokenizer.encode_batch_fast(_strings(texts[start : start + _WINDOW_TEXTS]))
            window = [encoding.ids for encoding in encodings]
            ids.append(np.fromiter(itertools.chain.from_iterable(window), dtype=np.int32))
            lengths.extend(map(len, window))
        return cls(np.concatenate(ids), np.cumsum(lengths, dtype=np.int64), pad_id, side)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: slice) -> TokenTable:
        """A stretch of rows; the ids stay where they are."""
        start, stop, _ = rows.indices(len(self))
        return TokenTable(self.ids, self.starts[start : stop + 1], self.pad_id, self.side, self.first + start)

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        return np.diff(self.starts)

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """As `lengths[rows]`, without a look at all the others."""
        lengths: np.ndarray = self.starts[rows + 1] - self.starts[rows]
        return lengths

    def leaving_out(self, instances: Int[np.ndarray, " left_out"]) -> TokenTable:
        return self  # a row holds nothing but its own text

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Tensor, Side, Tensor]:
        """Ids and attention mask, "row token" each, padded to the longest of these rows; whose they are, and which."""
        starts, lengths = self.starts[rows], self.lengths_of(rows)
        mask = np.arange(lengths.max()) < lengths[:, None]
        input_ids = np.full(mask.shape, self.pad_id, dtype=np.int64)
        # Within a row, token t lies t places after the row's start.
        input_ids[mask] = self.ids[np.repeat(starts, lengths) + np.nonzero(mask)[1]]
        tokens = torch.from_numpy(input_ids).to(device), torch.from_numpy(mask.astype(np.int64)).to(device)
        return *tokens, self.side, numbers(self.first, rows, device)


@dataclass(frozen=True)
class VectorTable:
    """Vectors that were encoded before: what an adapter reads in the place of tokens; row i is number `first` + i."""

    vectors: Tensor
    side: Side = "queries"
    first: int = 0

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice) -> VectorTable:
        return VectorTable(self.vectors[rows], self.side, self.first + rows.indices(len(self))[0])

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        return np.ones(len(self), dtype=np.int64)

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        return np.ones(len(rows), dtype=np.int64)

    def leaving_out(self, instances: Int[np.ndarray, " left_out"]) -> VectorTable:
        return self  # a row holds nothing but its own text

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Side, Tensor]:
        return self.vectors[torch.from_numpy(rows)].to(device), self.side, numbers(self.first, rows, device)


@runtime_checkable
class Inputs(Protocol):
    """What a model reads, a row an instance or a label."""

    @property
    def side(self) -> Side: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Inputs: ...

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        """Tokens of each row."""
        ...

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """Tokens of these rows."""
        ...

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor | Side, ...]:
        """What the model takes of these rows; last come their side and their numbers."""
        ...

    def leaving_out(self, instances: Int[np.ndarray, " left_out"]) -> Inputs:
        """The same rows as if these instances were not there."""
        ...


def numbers(first: int, rows: Int[np.ndarray, " row"], device: str) -> Int[Tensor, " row"]:
    """Which of all instances, or labels, the rows of a table are that begins with number `first`."""
    return torch.from_numpy(rows + first).to(device)


def batches_by_length(
    lengths: Int[np.ndarray, " row"], batch_tokens: int, batch_rows: int = 2**31
) -> Iterator[Int[np.ndarray, " row"]]:
    """Cut rows into batches of like length, longest first, so that memory peaks at once and padding stays small.

    A batch ends at a limit, or where a tenth of it would be padding, unless it is too small to keep the cores busy.

    Args:
        lengths: Tokens of each row.
        batch_tokens: Limit of a batch's size, padding included; a longer row is a batch of its own.
        batch_rows: Limit of a batch's rows.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    falling = lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, int(falling[start]))
        limit = min(max(1, batch_tokens // longest), batch_rows)
        rows = np.arange(1, min(limit, len(order) - start) + 1)
        filled = np.cumsum(falling[start : start + limit]) >= (1 - _PADDING) * rows * longest
        dense = int(filled.sum())  # the mean only falls: what is filled comes first
        count = max(dense, min(limit, -(-_FEWEST_TOKENS // longest)))
        yield order[start : start + count].copy()  # not a reversed view, which torch refuses
        start += count


def _strings(texts: Texts) -> list[str]:
    return list(texts) if isinstance(texts, Sequence) else texts.to_pylist()
