"""The cross-encoder: reads a query together with its best candidates, and gives a logit to each of them.

One sequence has the tokens of the query, then those of all its candidates. The tokens of the query attend to the query
alone. The tokens of a candidate attend to the query and to this candidate. So a query is read once for all candidates,
and several candidates cost little more than one. Each candidate continues the positions of the query, as if it were the
only one. Its logit is the mean of the graph's outputs at its tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from jaxtyping import Float
from tokenizers import Tokenizer

from recollect.core.errors import BundleError
from recollect.core.reranker.scorer import Pair, Scored, Scorer
from recollect.core.tokenizer import encode_beginnings

# The inputs of the graph, and its output: a number for each token.
INPUTS, OUTPUT = ("input_ids", "segments", "positions"), "token_logits"
# Maximum number of labels whose tokens are kept.
_MOST_KNOWN = 65_536
# Share of the last measured time in the expected time of a query. A query gets so many times this time, because the
# machine can be busier than before, and its answer is not complete yet.
_NEWEST_SHARE, _RESERVE = 0.2, 2
# Factor of the expected time for each call that reads no query: after a stall, queries are read again.
_RECOVERY = 0.9


class Joined(NamedTuple):
    """A query with its candidates, as the graph reads them.

    Attributes:
        segments: 0 for a token of the query, n for one of the n-th candidate.
        starts: Place of the first token of each candidate.
    """

    input_ids: list[int]
    segments: list[int]
    positions: list[int]
    starts: list[int]


class PairTokenizer:
    """Tokenises queries and labels, and joins them.

    Args:
        lengths: Maximum number of tokens of a query and of a label, without the tokens that end them.
    """

    def __init__(self, tokenizer: Tokenizer, lengths: tuple[int, int]) -> None:
        self._tokenizer, self._lengths = tokenizer, lengths
        tokenizer.no_padding()
        tokenizer.enable_truncation(max(lengths))
        encoding = tokenizer.encode("a")
        first = encoding.special_tokens_mask.index(0)
        self._before, self._after = encoding.ids[:first], encoding.ids[first + 1 :]
        self._known: dict[str, list[int]] = {}

    def join(self, query: str, labels: Sequence[str]) -> Joined:
        """The sequence of a query and its candidates."""
        (tokens,) = self._tokenise([query], self._lengths[0])
        ids = [*self._before, *tokens, *self._after]
        end = len(ids)  # each candidate continues here
        sequence = Joined(ids, [0] * end, list(range(end)), [])
        for number, name in enumerate(self._labels(labels), start=1):
            sequence.starts.append(len(sequence.input_ids))
            sequence.input_ids.extend(name)
            sequence.segments.extend([number] * len(name))
            sequence.positions.extend(range(end, end + len(name)))
        return sequence

    def _labels(self, labels: Sequence[str]) -> list[list[int]]:
        before = self._known  # another thread may replace it
        known = {label: ids for label in labels if (ids := before.get(label)) is not None}
        unknown = [label for label in dict.fromkeys(labels) if label not in known]
        found = zip(unknown, self._tokenise(unknown, self._lengths[1]), strict=True)
        known |= {label: [*ids, *self._after] for label, ids in found}
        self._known = known if len(before) + len(unknown) > _MOST_KNOWN else {**before, **known} if unknown else before
        return [known[label] for label in labels]

    def _tokenise(self, texts: Sequence[str], length: int) -> list[list[int]]:
        encodings = encode_beginnings(self._tokenizer, texts, add_special_tokens=False) if texts else []
        return [encoding.ids[:length] for encoding in encodings]


class CrossEncoder(Scorer):
    """A cross-encoder of files of the bundle; thread-safe.

    In int8, batches save nothing, so it reads one query at a time.
    """

    def __init__(self, path: Path, tokenizer: PairTokenizer, session: onnxruntime.InferenceSession) -> None:
        names = [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]
        if names != ([*INPUTS], [OUTPUT]):
            raise BundleError(f"{path}: expected the graph of a cross-encoder, found another; build the bundle again")
        self._path, self._tokenizer, self._session = path, tokenizer, session
        self._seconds, self._least = 0.0, np.inf  # expected time of a query, and the least one measured

    def score(self, pairs: Sequence[Pair], checkpoint: Callable[[], None] = lambda: None) -> list[Scored]:
        scored: list[Scored] = []
        for pair in pairs:
            checkpoint()
            began = time.monotonic()
            if began + _RESERVE * self._seconds > pair.deadline:
                scored.append("deadline")
                continue
            scored.append(self._score(pair))
            spent = time.monotonic() - began
            self._seconds += (spent - self._seconds) * (_NEWEST_SHARE if self._seconds else 1)
            self._least = min(self._least, spent)
        if pairs and all(isinstance(each, str) for each in scored):
            self._seconds = max(self._least, _RECOVERY * self._seconds)
        return scored

    def _score(self, pair: Pair) -> Float[np.ndarray, " label"]:
        sequence = self._tokenizer.join(pair.query, pair.labels)
        columns = sequence.input_ids, sequence.segments, sequence.positions
        feed = {name: np.array([column], dtype=np.int64) for name, column in zip(INPUTS, columns, strict=True)}
        logits = segment_means(self._session.run([OUTPUT], feed)[0][0], sequence.starts)
        if not np.isfinite(logits).all():
            raise BundleError(f"{self._path}: expected finite logits, found others; run `recollect rank` again")
        return logits


def segment_means(values: Float[np.ndarray, " token"], starts: Sequence[int]) -> Float[np.ndarray, " candidate"]:
    """The mean of the values of each candidate."""
    ends = itertools.pairwise([*starts, len(values)])
    return np.array([values[start:end].mean() for start, end in ends], dtype=np.float32)
