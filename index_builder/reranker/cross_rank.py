"""Fit the second ranker, whose trees also read the logit of a cross-encoder, or the score of a reranker on a server.

The cross-encoder learns from texts that are no examples of the trees, so its logits of the examples are those of texts
that it does not know. Its candidates are found as those of the examples: in a memory without the whole fold of the
text. The first ranker chooses the wrong labels that it learns to reject, and the candidates that it reads.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from recollect.core import extras
from recollect.core.bundle.files import CROSS_ENCODER, CROSS_TOKENIZER
from recollect.core.encoder import open_session
from recollect.core.reranker.candidates import CLASSIFIER
from recollect.core.reranker.cross_encoder import CrossEncoder, PairTokenizer
from recollect.core.reranker.cross_ranker import CROSS_FEATURE, CrossRankerFile, first_rows, with_feature
from recollect.core.reranker.model import RankerFile, RankerModel
from recollect.core.reranker.scorer import Pair, Scored, Scorer
from recollect.core.system.console import print_status, progress_bar
from recollect.core.tokenizer import open_tokenizer
from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.errors import BuildError, NothingToRank
from recollect.index_builder.reranker.calibrate import HeldOut
from recollect.index_builder.reranker.cross_encoder import (
    LENGTHS,
    Lesson,
    check_base,
    export_cross_encoder,
    train_cross_encoder,
)
from recollect.index_builder.reranker.examples import Examples, ExampleSource
from recollect.index_builder.reranker.fit import CrossFitted, fit_ranker
from recollect.index_builder.settings import RankSettings
from recollect.trainer.encoding.checkpoint import load_checkpoint, load_encoder
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.memory import Memory
from recollect.trainer.randomness import Purpose, generator

# Fewer texts train no cross-encoder.
_MIN_TEXTS = 100
# Maximum number of texts for each minute of the training: about as many as two fast cores read.
_TEXTS_PER_MINUTE = 1_000
# Number of true and of wrong labels of a text that the cross-encoder learns at most.
_TRUE, _WRONG = 5, 8
_FOLDS = 3
# Number of texts that are read together.
_BLOCK_QUERIES = 32
# Number of texts whose logits decide how finely the cross-encoder is quantised.
_SAMPLE_TEXTS = 64

# Where the scores come from: an encoder that becomes a cross-encoder; or a reranker on a server, with its description.
ScoreSource = Encoder | tuple[Scorer, dict[str, Any]]


@dataclass(frozen=True)
class CrossFit:
    """A second ranker and its files; and its rankings of the examples, which judge and calibrate it."""

    file: CrossRankerFile
    fitted: CrossFitted
    held_out: HeldOut
    files: dict[str, bytes]
    texts: int  # from which the cross-encoder learnt; 0 for a reranker on a server


@dataclass(frozen=True)
class FirstRanker:
    """The ranker without a cross-encoder, and its rankings of the instances `rows`."""

    source: ExampleSource
    rows: Int[np.ndarray, " query"]
    fitted: CrossFitted
    file: RankerFile


def open_score_source(settings: RankSettings) -> ScoreSource:
    """Load the encoder of the settings, or connect to their reranker. Call it first: both can be missing.

    Raises:
        BuildError, EncoderError: If the encoder is missing, or is no BERT encoder.
        EncoderDownError: If the server does not answer, or not with scores.
    """
    if not settings.cross_encoder:
        served: tuple[Scorer, dict[str, Any]] = extras.load("reranker", "server").connect(settings)
        return served
    if settings.cross_encoder_base is None:
        encoder = load_checkpoint(settings.run / "checkpoint", "cpu")
    else:
        length = max(LENGTHS)
        encoder = load_encoder(settings.cross_encoder_base, "auto", length, length, "cpu", "--cross-encoder-base")
    check_base(encoder)
    return encoder


def fit_cross_ranker(
    memory: Memory, settings: RankSettings, scores: ScoreSource, first: FirstRanker, threads: int
) -> CrossFit:
    """Train a cross-encoder, if the scores come from one, and fit trees that read the scores.

    Raises:
        NothingToRank: If too few texts are no examples.
        BuildError: If the server fails.
    """
    texts, labels = first.source.texts, list(read_field(memory.folder / "labels.jsonl", "text"))
    queries, count = [texts[row] for row in first.rows.tolist()], settings.cross_encoder_candidates
    files, learnt = dict[str, bytes](), 0
    source: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        scorer: Scorer
        if isinstance(scores, Encoder):
            lessons = _lessons(memory, settings, first, texts, labels, threads)
            scorer, learnt = _train(settings, scores, lessons, threads, Path(scratch))
            files = {name: (Path(scratch) / name).read_bytes() for name in (CROSS_ENCODER, CROSS_TOKENIZER)}
            source["lengths"] = LENGTHS
        else:
            scorer, source["server"] = scores
        more = with_scores(first.fitted.examples, first.fitted.logits, queries, labels, scorer, count)
    shape = first.fitted.shape
    file = CrossRankerFile(format_version=1, ranker=fit_ranker(more, shape, threads), candidates=count, **source)
    fitted = CrossFitted.of(more, first.fitted.fold, shape, threads)
    return CrossFit(file, fitted, fitted.held_out(memory.relevance[first.rows]), files, learnt)


def _train(
    settings: RankSettings, encoder: Encoder, lessons: list[Lesson], threads: int, folder: Path
) -> tuple[CrossEncoder, int]:
    """Train a cross-encoder, and write its files into a folder; return it, and the number of its texts."""
    torch.set_num_threads(threads)
    print_status(f"cross-encoder: up to {len(lessons):,} texts, {settings.minutes:g} minutes")
    model, learnt = train_cross_encoder(encoder, lessons, 60 * settings.minutes, settings.seed)
    export_cross_encoder(model, encoder, folder, lessons[:: max(1, len(lessons) // _SAMPLE_TEXTS)])
    tokenizer = PairTokenizer(open_tokenizer(folder / CROSS_TOKENIZER, max(LENGTHS)), LENGTHS)
    session = open_session(folder / CROSS_ENCODER, "int8", threads, "cpu")
    return CrossEncoder(folder / CROSS_ENCODER, tokenizer, session), learnt


def with_scores(
    examples: Examples,
    logits: Float[np.ndarray, " candidate"],
    queries: Sequence[str],
    labels: Sequence[str],
    scorer: Scorer,
    count: int,
) -> Examples:
    """The examples with one more feature: the scores of the best candidates of each query by these logits.

    Raises:
        BuildError: If a server gives no scores.
    """
    offsets = np.searchsorted(examples.query, np.arange(len(queries) + 1))
    best = [first_rows(offsets[query : query + 2], logits, count) for query in range(len(queries))]
    pairs = [
        Pair(text, [labels[label] for label in examples.label[rows].tolist()], float("inf"))
        for text, rows in zip(queries, best, strict=True)
    ]
    scored = list[Scored]()
    with progress_bar(len(queries), "query", "read") as bar:
        for start in range(0, len(pairs), _BLOCK_QUERIES):
            scored += scorer.score(pairs[start : start + _BLOCK_QUERIES])
            bar.update(len(scored) - bar.n)
    if failed := sum(isinstance(each, str) for each in scored):
        raise BuildError(
            f"--reranker: expected the scores of {len(queries):,} texts, found none for {failed:,}; repeat the command "
            "when the server answers"
        )
    features = with_feature(examples.features, best, scored)
    return dataclasses.replace(examples, features=features, names=(*examples.names, CROSS_FEATURE))


def _lessons(
    memory: Memory,
    settings: RankSettings,
    first: FirstRanker,
    texts: list[str],
    labels: list[str],
    threads: int,
) -> list[Lesson]:
    """The texts from which the cross-encoder learns, with candidates: none is an example of the trees."""
    examples = {texts[row] for row in first.rows.tolist()}
    labelled = np.flatnonzero(np.diff(memory.value_indptr) > 0)
    free = np.array([row for row in labelled.tolist() if texts[row] not in examples], dtype=np.int64)
    rng = generator(settings.seed, Purpose.DISTILLATION)
    chosen = np.sort(rng.permutation(free)[: round(max(1, settings.minutes) * _TEXTS_PER_MINUTE)])
    if len(chosen) < _MIN_TEXTS:
        raise NothingToRank(
            f"{settings.run}: --cross-encoder: expected at least {_MIN_TEXTS} texts with labels that are no examples "
            f"of the ranker, found {len(chosen)}; train on more texts, or set a smaller --queries"
        )
    fold = rng.permutation(len(chosen)) % _FOLDS
    found = first.source.cross(chosen, fold)
    if CLASSIFIER in first.file.features:
        found = first.source.with_classifiers(found, chosen, fold, threads)
    order = np.lexsort((-RankerModel(first.file).logits(found.features), found.query))
    offsets, lessons = np.searchsorted(found.query[order], np.arange(len(chosen) + 1)).tolist(), list[Lesson]()
    for query, row in enumerate(chosen.tolist()):
        best = order[offsets[query] : offsets[query + 1]]
        is_true = found.true[best]
        true, wrong = best[is_true][:_TRUE], best[~is_true][:_WRONG]
        if len(true) and len(wrong):
            names = [labels[label] for label in found.label[np.concatenate([true, wrong])].tolist()]
            lessons.append(Lesson(texts[row], names, len(true)))
    return lessons
