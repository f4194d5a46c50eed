"""The predictor answers queries with one open bundle.

The service, the command line and the evaluation use the predictor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float

from service.bundle.bundle import Bundle
from service.bundle.manifest import MOST_KEYS, Defaults
from service.errors import BundleError
from service.lexical.index import LexicalIndex
from service.options import AnswerOptions, group_by_options, require_probabilities, resolve_options
from service.predictor.answers import Answer, Answers, Reason, ScoredLabel, Stopwatch
from service.predictor.encoder import QueryEncoder
from service.predictor.exhaustive import ExhaustiveRanker
from service.predictor.filters import LabelFilter
from service.predictor.reranking import Reranker
from service.predictor.scoring import Ranking, Votes, cast_votes, rank, sort_votes
from service.predictor.searcher import Neighbours, Searcher
from service.predictor.words import WordVoter, mix
from service.ranking.assign import assigned_counts
from service.ranking.calibration import calibrate, log_odds
from service.ranking.ranker import RankedCandidates, Ranker
from service.settings import Device

# A filtered search that finds too few labels is repeated with top_b multiplied by this factor, up to `MOST_KEYS` keys.
_TOP_B_GROWTH = 4


class Predictor:
    """An open bundle that answers queries; thread-safe.

    Attributes:
        block_keys: Number of keys whose votes are in memory at the same time; this limits the memory for a large batch,
            and the time between two checkpoints.
    """

    block_keys = 16_384

    def __init__(self, bundle: Bundle, threads: int, device: Device = "cpu") -> None:
        self._threads = threads
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.encoder = QueryEncoder.of(bundle, threads, device)
        self.searcher = Searcher(bundle, device)
        self.values = bundle.values
        self.words: WordVoter | None = None
        if bundle.manifest.has_lexical_index:
            counts = bundle.manifest.counts
            index = LexicalIndex.open_with(bundle.components.open, counts.instances, counts.labels)
            self.words = WordVoter(index, self.values)
        self.reranker: Reranker | None = None
        if bundle.manifest.has_ranker:
            self.reranker = Reranker(Ranker.open(bundle, self.values), self.values)
        self._check_shapes()
        self.exhaustive = ExhaustiveRanker(bundle.voter_indptr, bundle.voter_indices, self.searcher, self.values)
        bundle.components.release_unused()

    @classmethod
    def open(
        cls, bundle: Bundle, threads: int, device: Device = "cpu", pause: Callable[[], None] | None = None
    ) -> Predictor:
        """Open the encoder and the indexes of a checked bundle, and warm them up, so that the first query is fast.

        With device `cuda` or `auto`, an encoder or index that cannot use the GPU runs on the CPU; `cpu_reasons` gives
        the reasons. `pause` is called between the steps, so that a caller can slow them down.

        Raises:
            BundleError: If a file does not open, the files do not fit together, or the encoder is wrong.
        """
        predictor = cls(bundle, threads, device)
        predictor.warm_up(pause)
        return predictor

    def close(self) -> None:
        """Free the encoder and the indexes, and unmap the files of the bundle, in the calling thread.

        Components that another open predictor shares stay open. After this, only `manifest` can be used.
        """
        components = self.bundle.components
        del self.bundle, self.encoder, self.searcher, self.values, self.words, self.reranker, self.exhaustive
        components.close()

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def defaults(self) -> Defaults:
        return self.manifest.defaults

    def resolve(self, **chosen: Any) -> AnswerOptions:
        """Complete the options that a caller chose: the arguments of `resolve_options`.

        Raises:
            QueryError: If an option needs probabilities, and the bundle has none for these options.
        """
        options = resolve_options(self.defaults, **chosen)
        require_probabilities(options, self.defaults, self.version, self.manifest.probabilities is not None)
        return options

    @property
    def cpu_reasons(self) -> list[str]:
        """The reasons why the encoder or an index does not use the requested GPU."""
        return [reason for reason in (self.encoder.cpu_reason, *self.searcher.cpu_reasons) if reason]

    def _check_shapes(self) -> None:
        folder, manifest = self.bundle.folder, self.manifest
        for name, found, expected in (
            ("encoder.onnx", (self.encoder.dim,), (manifest.dim,)),
            ("instance_keys.faiss", self.searcher.instances.shape, (manifest.counts.instances, manifest.dim)),
            ("label_keys.faiss", self.searcher.labels.shape, (manifest.counts.labels, manifest.dim)),
        ):
            if found != expected:
                raise BundleError(
                    f"{folder / name}: the manifest states the shape {expected}, found {found}; "
                    "rebuild with `recollect build`"
                )

    def warm_up(self, pause: Callable[[], None] | None = None) -> None:
        """Answer some training queries of the bundle, so that the first real query is fast.

        Raises:
            BundleError: If the encoder does not produce unit vectors.
        """
        rows = np.linspace(0, len(self.bundle.instance_texts) - 1, num=4, dtype=int)
        for text in [self.bundle.instance_texts[row] for row in rows.tolist()]:
            vector = self.encoder.encode_known(text)
            if not np.isclose(np.linalg.norm(vector), 1, atol=1e-3):
                raise BundleError(
                    f"{self.bundle.folder / 'encoder.onnx'}: expected unit vectors, found vectors of another length; "
                    "build the bundle again"
                )
            self.answer(vector, resolve_options(self.defaults), [text])
            if pause is not None:
                pause()

    def encode(self, queries: Sequence[str]) -> Float[np.ndarray, "query dim"]:
        """Encode queries as unit vectors."""
        return self.encoder.encode(self.encoder.tokenise(queries))

    def answer(
        self,
        vectors: Float[np.ndarray, "query dim"],
        options: AnswerOptions,
        queries: Sequence[str] | None = None,
    ) -> list[Answer]:
        """Answer queries that are encoded already, without a filter.

        Without the texts of the queries, words have no share in the scores, and the labels are in order of score.
        """
        faiss.omp_set_num_threads(self._threads)
        return self._answer(queries, vectors, [False] * len(vectors), options, None, Stopwatch())

    def predict(self, queries: Sequence[str], options: AnswerOptions) -> Answers:
        """Answer the queries of one request."""
        return self.predict_together([(queries, options)])[0]

    def predict_together(
        self,
        requests: Sequence[tuple[Sequence[str], AnswerOptions]],
        checkpoint: Callable[[], None] = lambda: None,
    ) -> list[Answers]:
        """Answer several requests together, each with its own options.

        All queries are encoded together. Queries with equal options are searched and ranked together. Every request
        gets the times of the whole call, because it waits until all requests are answered.

        Args:
            requests: The queries and the options of each request.
            checkpoint: Called between the blocks of the computation; an error that it raises stops the computation.
        """
        watch = Stopwatch()
        queries = [query for texts, _ in requests for query in texts]
        tokens = self.encoder.tokenise(queries)
        watch.lap("tokenize")
        vectors = self.encoder.encode(tokens, checkpoint)
        watch.lap("encode")
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this number per calling thread
        answers: list[Answer | None] = [None] * len(queries)
        for options, rows in group_by_options(requests):
            label_filter = LabelFilter(options.allow, options.deny, self.bundle.labels) if options.filtered else None
            # A query with a filter is ranked alone: the number of keys that are retrieved for it must not depend on its
            # batch.
            step = 1 if label_filter else max(1, self.block_keys // options.top_b)
            for start in range(0, len(rows), step):
                checkpoint()
                part = rows[start : start + step]
                truncated = [tokens.truncated[row] for row in part]
                texts = [queries[row] for row in part]
                found = self._answer(texts, vectors[part], truncated, options, label_filter, watch)
                for row, answer in zip(part, found, strict=True):
                    answers[row] = answer
        ends = np.cumsum([0, *(len(texts) for texts, _ in requests)]).tolist()
        return [
            Answers([answer for answer in answers[start:stop] if answer is not None], watch.stages)
            for start, stop in itertools.pairwise(ends)
        ]

    def _answer(
        self,
        queries: Sequence[str] | None,
        vectors: Float[np.ndarray, "query dim"],
        truncated: list[bool],
        options: AnswerOptions,
        label_filter: LabelFilter | None,
        watch: Stopwatch,
    ) -> list[Answer]:
        """Answer queries that have equal options. If the options have a filter, there is only one query."""
        nearest, votes, by_words, reranked = self._search(queries, vectors, options, label_filter, watch)
        if label_filter is None:
            ranking, votes = self._rank(votes, by_words, options)
        else:
            ranking, votes = self._rank_filtered(vectors, nearest, votes, by_words, options, label_filter, watch)
        if self.reranker is not None and reranked is not None:
            ranking = self.reranker.reorder(ranking, reranked)
        exhausted = label_filter is not None and len(ranking.label) < options.top_k
        sorted_votes = sort_votes(votes) if options.explain else None
        rows = np.searchsorted(ranking.query, np.arange(len(vectors) + 1))
        chances = self.probabilities(ranking, options)
        counts = np.minimum(np.diff(rows), options.top_k)
        if options.assign and chances is not None:
            counts = assigned_counts(chances, rows, options.top_k)
        answers = []
        for query, (start, count) in enumerate(zip(rows[:-1].tolist(), counts.tolist(), strict=True)):
            labels = [
                self._describe(query, row, ranking, chances, sorted_votes, reranked)
                for row in range(start, start + count)
                if ranking.score[row] >= options.threshold
                and (chances is None or chances[row] >= options.min_probability)
            ]
            answers.append(Answer(labels, truncated[query], exhausted))
        watch.lap("combine")
        return answers

    def probabilities(self, ranking: Ranking, options: AnswerOptions) -> Float[np.ndarray, " row"] | None:
        """The probability of each ranked label; None if the bundle has no probabilities for these options."""
        info = self.manifest.probabilities
        if info is None or not options.uses_votes_of(self.defaults) or (self.reranker and ranking.logit is None):
            return None
        return calibrate(info.calibration, log_odds(ranking.score) if ranking.logit is None else ranking.logit)

    def _search(
        self,
        queries: Sequence[str] | None,
        vectors: Float[np.ndarray, "query dim"],
        options: AnswerOptions,
        label_filter: LabelFilter | None,
        watch: Stopwatch,
    ) -> tuple[Neighbours, Votes, Votes | None, RankedCandidates | None]:
        """Find the nearest keys, their votes, the votes by words, and the ranker's candidates.

        The votes by words are None if words have no share in the scores. The candidates are None if the ranker does not
        order the labels.
        """
        reranker = self.reranker if options.order == "probability" else None
        by_words, words = None, None
        if self.words is not None and queries is not None and (options.word_weight > 0 or reranker is not None):
            words = self.words.search_each(queries)
            by_words = self.words.votes_of(words, options.lambda_) if options.word_weight > 0 else None
            watch.lap("words")
        if reranker is None or queries is None:
            nearest = self.searcher.search(vectors, options.top_b, options.lambda_)
            watch.lap("search")
            return nearest, self._cast_votes(nearest, options), by_words, None
        nearest, instances, labels = self.searcher.search_each(vectors, options.top_b, options.lambda_)
        watch.lap("search")
        votes = self._cast_votes(nearest, options)
        candidates = reranker.find(queries, votes, instances, labels, words, options, label_filter)
        watch.lap("rank")
        return nearest, votes, by_words, candidates

    def _cast_votes(self, neighbours: Neighbours, options: AnswerOptions) -> Votes:
        return cast_votes(neighbours, options.temperature, options.lambda_, self.values)

    def _rank(self, votes: Votes, by_words: Votes | None, options: AnswerOptions) -> tuple[Ranking, Votes]:
        """Rank the labels that the retrieved keys vote for. Each vote is one term of a score."""
        if by_words is not None:
            votes = mix(votes, by_words, options.word_weight)
        return rank(votes, self.values), votes

    def _rank_filtered(
        self,
        vector: Float[np.ndarray, "1 dim"],
        nearest: Neighbours,
        votes: Votes,
        by_words: Votes | None,
        options: AnswerOptions,
        label_filter: LabelFilter,
        watch: Stopwatch,
    ) -> tuple[Ranking, Votes]:
        """Rank the labels that a filter admits: retrieve more keys until k labels are found, or rank exhaustively."""
        top_b, max_top_b = options.top_b, min(self.searcher.keys, MOST_KEYS)
        enough = min(options.top_k, self.exhaustive.count_rankable(label_filter, options.lambda_))
        exhaustive_is_cheap = self.exhaustive.is_cheap(label_filter, options.lambda_)
        while not exhaustive_is_cheap:
            ranking, all_votes = self._rank(votes, by_words, options)
            ranking = label_filter.apply(ranking)
            watch.lap("combine")
            if len(ranking.label) >= enough:
                return ranking, all_votes
            if top_b >= max_top_b:
                break
            top_b = min(top_b * _TOP_B_GROWTH, max_top_b)
            votes = self._cast_votes(self.searcher.search(vector, top_b, options.lambda_), options)
            watch.lap("search")
        explained = options.top_k if options.explain else 0
        return self.exhaustive.rank(
            vector[0],
            nearest,
            label_filter.labels,
            options.temperature,
            options.lambda_,
            explained,
            by_words,
            options.word_weight,
        )

    def _describe(
        self,
        query: int,
        row: int,
        ranking: Ranking,
        chances: Float[np.ndarray, " row"] | None,
        votes: Votes | None,
        reranked: RankedCandidates | None,
    ) -> ScoredLabel:
        table, label = self.bundle.labels, int(ranking.label[row])
        because = None if votes is None else [self._reason(*term) for term in votes.terms(query, label)]
        probability = None if chances is None else float(chances[row])
        score, terms = float(ranking.score[row]), None
        if votes is not None and self.reranker is not None and reranked is not None:
            terms = self.reranker.explain(query, label, reranked)
        return ScoredLabel(label, table.uids[label], table.texts[label], score, because, probability, terms)

    def _reason(self, key: int, share: float, by_words: bool) -> Reason:
        instances, by = self.values.instances, "words" if by_words else None
        if key < instances:
            return Reason("instance", self.bundle.instance_uids[key], self.bundle.instance_texts[key], share, by)
        label = key - instances
        return Reason("label", self.bundle.labels.uids[label], self.bundle.labels.texts[label], share, by)
