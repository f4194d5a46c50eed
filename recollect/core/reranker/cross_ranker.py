"""The second ranker: the trees of a ranker with one more feature, the logit of a cross-encoder.

A cross-encoder takes much longer than the ranker, so it reads only the ranker's first candidates. The feature of all
others is missing. The second ranker orders all candidates, and has probabilities of its own. An answer without the
feature, because it was not asked for or would be late, is that of the first ranker.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator

from recollect.core import extras
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import CROSS_ENCODER, CROSS_RANKER, CROSS_TOKENIZER
from recollect.core.bundle.manifest import Probabilities
from recollect.core.encoder import open_session
from recollect.core.errors import BundleError
from recollect.core.reranker.candidates import ALL_FEATURES, Candidates
from recollect.core.reranker.cross_encoder import CrossEncoder, PairTokenizer
from recollect.core.reranker.model import RankerFile, RankerModel, read_ranker_file, wrong_ranker_file
from recollect.core.reranker.scorer import LeftOut, Pair, Scored, Scorer
from recollect.core.settings import ConnectionSettings, RerankerSettings
from recollect.core.tokenizer import open_tokenizer

# The feature, after all others.
CROSS_FEATURE = "cross_encoder"
FEATURES = (*ALL_FEATURES, CROSS_FEATURE)
# Share of the time until the deadline that is left for the rest of the answer.
_RESERVED_SHARE = 0.2


class CrossRankerFile(BaseModel):
    """The content of `cross_ranker.json`.

    Attributes:
        ranker: The trees.
        candidates: Number of the first ranker's best candidates that the cross-encoder reads.
        lengths: Maximum number of tokens of a query and of a label. None with a server.
        server: The reranker on a server in place of a cross-encoder of files, as the extra records it.
        probabilities: The calibration of the logits; None in a run, and if the bundle gives no probabilities.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1]
    ranker: RankerFile
    candidates: int = Field(ge=1, le=100)
    lengths: tuple[int, int] | None = None
    server: dict[str, Any] | None = None
    probabilities: Probabilities | None = None

    @model_validator(mode="after")
    def _check(self) -> CrossRankerFile:
        if CROSS_FEATURE not in self.ranker.features or not {*self.ranker.features} <= {*FEATURES}:
            raise ValueError(f"features: expected {CROSS_FEATURE}, and features that this release computes")
        if (self.lengths is None) == (self.server is None):
            raise ValueError("expected lengths, or a server")
        if self.lengths is not None and not all(1 <= length <= 4_096 for length in self.lengths):
            raise ValueError("lengths: expected numbers from 1 to 4096")
        return self


@dataclasses.dataclass(frozen=True)
class CrossRanker:
    """Computes the logits of the second ranker. Without a scorer, every query is left out."""

    model: RankerModel
    scorer: Scorer | None
    candidates: int
    probabilities: Probabilities | None

    @classmethod
    def open(cls, bundle: Bundle, threads: int, connections: RerankerSettings | None = None) -> CrossRanker:
        """Open the second ranker of a bundle that has one, with its cross-encoder.

        Args:
            connections: The connection to a reranker on a server; None reads the environment variables.

        Raises:
            BundleError: If a file does not open, or the files do not fit together.
        """
        file = bundle.components.open(read_ranker_file, CROSS_RANKER, CrossRankerFile)
        scorer: Scorer | None
        if file.lengths is not None:
            scorer = _open_files(bundle, file.lengths, threads)
        else:
            hook = extras.load("reranker", "server")
            try:
                scorer = hook.open_scorer(file.server, connections or ConnectionSettings.of_environment())
            except ValueError as error:
                raise wrong_ranker_file(bundle.folder / CROSS_RANKER, str(error).partition("\n")[0]) from None
        return cls(RankerModel(file.ranker, FEATURES), scorer, file.candidates, file.probabilities)

    def rank(
        self,
        candidates: Candidates,
        logits: Float[np.ndarray, " candidate"],
        queries: Sequence[str],
        text_of: Callable[[int], str],
        deadlines: Sequence[float],
        checkpoint: Callable[[], None],
    ) -> tuple[Float[np.ndarray, "candidate feature"], Float[np.ndarray, " candidate"], list[LeftOut | None]]:
        """The features of all candidates with that of the cross-encoder, their logits, and who has none.

        Args:
            logits: Those of the first ranker. They stay for a query that is left out.
            text_of: The text of each label.
            deadlines: The times of `time.monotonic` after which an answer has no use.

        Returns:
            Features; logits; for each query the reason why it is left out, None for the others.
        """
        rows = [
            first_rows(candidates.offsets[query : query + 2], logits, self.candidates) for query in range(len(queries))
        ]
        now = time.monotonic()
        pairs = [
            Pair(
                text,
                [text_of(label) for label in candidates.label[best].tolist()],
                now + (1 - _RESERVED_SHARE) * (deadline - now),
            )
            for text, best, deadline in zip(queries, rows, deadlines, strict=True)
        ]
        scored: list[Scored] = ["server" for _ in pairs]
        if self.scorer is not None:
            scored = self.scorer.score(pairs, checkpoint)
        features = with_feature(candidates.features, rows, scored)
        left_out: list[LeftOut | None] = [each if isinstance(each, str) else None for each in scored]
        reranked = np.array([each is None for each in left_out])[candidates.query]
        logits = logits.copy()
        logits[reranked] = self.model.logits(features[reranked])
        return features, logits, left_out


def first_rows(
    span: Int[np.ndarray, "2"], logits: Float[np.ndarray, " candidate"], count: int
) -> Int[np.ndarray, " best"]:
    """The rows of the best candidates of a query, whose rows are `span[0]` to `span[1]`."""
    start, stop = span.tolist()
    return np.asarray(start + np.argsort(-logits[start:stop], kind="stable")[:count])


def with_feature(
    features: Float[np.ndarray, "candidate feature"], rows: Sequence[Int[np.ndarray, " best"]], scored: Sequence[Scored]
) -> Float[np.ndarray, "candidate more"]:
    """The features with one more column: the scores at the given rows, missing elsewhere."""
    column = np.full((len(features), 1), np.nan, dtype=features.dtype)
    for best, scores in zip(rows, scored, strict=True):
        if not isinstance(scores, str):
            column[best, 0] = scores
    return np.concatenate([features, column], axis=1)


def _open_files(bundle: Bundle, lengths: tuple[int, int], threads: int) -> CrossEncoder:
    path, components = bundle.folder / CROSS_ENCODER, bundle.components
    if CROSS_ENCODER not in bundle.manifest.files:
        raise BundleError(
            f"{path}: expected the cross-encoder of {CROSS_RANKER}, found no file; build the bundle again"
        )
    tokenizer = components.open(_open_tokenizer, CROSS_TOKENIZER, lengths)
    return CrossEncoder(path, tokenizer, components.open(open_session, CROSS_ENCODER, "int8", threads, "cpu"))


def _open_tokenizer(path: Path, lengths: tuple[int, int]) -> PairTokenizer:
    return PairTokenizer(open_tokenizer(path, max(lengths)), lengths)
