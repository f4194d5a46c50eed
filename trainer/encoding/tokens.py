"""The inputs of a model: tables of token ids or vectors, and batches of rows with similar lengths."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from recollect.trainer.heads.adapter import Side

Texts: TypeAlias = Sequence[str] | pa.LargeStringArray

# Number of texts in one call of the tokenizer. The tokenizer returns Python objects, which are many times larger than
# the ids.
_CHUNK_TEXTS = 8_192

# Largest share of padding in a batch. Small batches may have more: a CPU could not use all its cores for less, and a
# GPU takes longer to start its kernels than to compute the padding.
_MAX_PADDING, _SMALL_BATCH_TOKENS = 0.1, {"cpu": 128, "cuda": 16_384}


class Inputs(abc.ABC):
    """Inputs of a model: one row for each instance or label."""

    @property
    @abc.abstractmethod
    def side(self) -> Side:
        """Whether the rows are queries (instances count as queries) or labels."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, rows: slice) -> Inputs: ...

    @abc.abstractmethod
    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor | Side, ...]:
        """Return the model's arguments for the given rows. The last two arguments are the side and the row numbers."""

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        """Number of tokens of each row; 1 for inputs that a batch does not pad."""
        return np.ones(len(self), dtype=np.int64)

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """`lengths[rows]`, without computing the other lengths."""
        return np.ones(len(rows), dtype=np.int64)

    def excluding(self, instances: Int[np.ndarray, " excluded"]) -> Inputs:
        """Return the inputs of the same rows, computed without the given instances."""
        return self


@dataclass(frozen=True)
class TokenTable(Inputs):
    """The token ids of texts.

    Row i has the ids `ids[starts[i] : starts[i + 1]]`, including special tokens. Row i is the text of instance or label
    `first` + i.
    """

    ids: Int[np.ndarray, " token"]
    starts: Int[np.ndarray, " pointer"]
    pad_id: int
    side: Side = "queries"
    first: int = 0

    @classmethod
    def of(
        cls, texts: Texts, tokenizer: Tokenizer, max_length: int, pad_id: int, side: Side = "queries", prompt: str = ""
    ) -> TokenTable:
        """Tokenise texts, with a prompt before each.

        A text is truncated to `max_length` tokens, with the prompt. A text without tokens gets a padding token.
        """
        tokenizer.enable_truncation(max_length)
        ids, lengths = [np.empty(0, np.int32)], [0]
        for start in range(0, len(texts), _CHUNK_TEXTS):
            chunk_texts = [prompt + text for text in _to_list(texts[start : start + _CHUNK_TEXTS])]
            encodings = tokenizer.encode_batch_fast(chunk_texts)
            chunk = [encoding.ids or [pad_id] for encoding in encodings]
            ids.append(np.fromiter(itertools.chain.from_iterable(chunk), dtype=np.int32))
            lengths.extend(map(len, chunk))
        return cls(np.concatenate(ids), np.cumsum(lengths, dtype=np.int64), pad_id, side)

    @classmethod
    def join(cls, tables: Sequence[TokenTable]) -> TokenTable:
        """Join tables of one side. The first table's rows come first."""
        lengths = np.concatenate([np.diff(table.starts) for table in tables])
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return cls(np.concatenate([table.ids for table in tables]), starts, tables[0].pad_id, tables[0].side)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: slice) -> TokenTable:
        """Return a table of a range of rows. The ids are shared, not copied."""
        start, stop, _ = rows.indices(len(self))
        return dataclasses.replace(self, starts=self.starts[start : stop + 1], first=self.first + start)

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        return np.diff(self.starts)

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        lengths: np.ndarray = self.starts[rows + 1] - self.starts[rows]
        return lengths

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Tensor, Side, Tensor]:
        """Return ids and attention mask of shape (row, token), padded to the longest row, then side and row numbers."""
        starts, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        mask = np.arange(lengths.max()) < lengths[:, None]
        input_ids = np.full(mask.shape, self.pad_id, dtype=np.int64)
        # Token t of a row is at the start of the row plus t.
        input_ids[mask] = self.ids[np.repeat(starts, lengths) + np.nonzero(mask)[1]]
        tokens = torch.from_numpy(input_ids).to(device), torch.from_numpy(mask.astype(np.int64)).to(device)
        return *tokens, self.side, row_numbers(self.first, rows, device)


class TokenBags(TokenTable):
    """The token ids of texts, for a static encoder.

    Such an encoder looks up each token alone, so padding costs nothing. Each row therefore has the length 1: batches
    are large, and mix long and short texts.
    """

    lengths, lengths_of = Inputs.lengths, Inputs.lengths_of


@dataclass(frozen=True)
class VectorTable(Inputs):
    """Vectors as inputs of an adapter or head. Row i is the vector of instance or label `first` + i."""

    vectors: Tensor
    side: Side = "queries"
    first: int = 0

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice) -> VectorTable:
        return VectorTable(self.vectors[rows], self.side, self.first + rows.indices(len(self))[0])

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Side, Tensor]:
        return self.vectors[torch.from_numpy(rows)].to(device), self.side, row_numbers(self.first, rows, device)


def row_numbers(first: int, rows: Int[np.ndarray, " row"], device: str) -> Int[Tensor, " row"]:
    """The instance or label positions of rows in a table that starts at position `first`."""
    return torch.from_numpy(rows + first).to(device)


def batches_by_length(
    lengths: Int[np.ndarray, " row"], batch_tokens: int, batch_rows: int = 2**31, device: str = "cpu"
) -> Iterator[Int[np.ndarray, " row"]]:
    """Split rows into batches of similar length, longest first, so that the first batch needs the most memory.

    A batch ends at a limit, or before its padding would exceed a tenth of its tokens. Small batches may have more
    padding.

    Args:
        batch_tokens: Maximum number of tokens in a batch, including padding. A longer row gets its own batch.
        device: Device of the model, which decides what a small batch is.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    descending = lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, int(descending[start]))
        limit = min(max(1, batch_tokens // longest), batch_rows)
        rows = np.arange(1, min(limit, len(order) - start) + 1)
        filled = np.cumsum(descending[start : start + limit]) >= (1 - _MAX_PADDING) * rows * longest
        dense = int(filled.sum())  # longest rows come first, so padding only grows with the number of rows
        count = max(dense, min(limit, -(-_SMALL_BATCH_TOKENS[device] // longest)))
        yield order[start : start + count].copy()  # torch does not accept reversed views
        start += count


def _to_list(texts: Texts) -> list[str]:
    return list(texts) if isinstance(texts, Sequence) else texts.to_pylist()
