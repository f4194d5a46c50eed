"""The predictor: one bundle, opened, answering queries. The service, the command line and the evaluation share it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float

from service.bundle.bundle import Bundle
from service.bundle.manifest import MOST_KEYS, Defaults
from service.errors import BundleError
from service.options import AnswerOptions, resolve_options
from service.predictor.encoder import QueryEncoder
from service.predictor.filters import Filter, Voters
from service.predictor.scoring import Ranking, Values, Votes, cast_votes, explaining, rank
from service.predictor.searcher import Neighbours, Searcher
from service.settings import Device

# How much further a filtered search looks each time it has not found enough, up to `MOST_KEYS`.
_WIDEN = 4
# Keys whose votes are laid out at a time: what bounds the memory of a large batch.
_BLOCK_KEYS = 16_384


@dataclass(frozen=True)
class Reason:
    """One term of a score."""

    kind: str
    uid: str
    text: str
    share: float


@dataclass(frozen=True)
class ScoredLabel:
    position: int
    uid: str
    text: str
    score: float
    because: list[Reason] | None = None

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"uid": self.uid, "text": self.text, "score": self.score}
        if self.because is not None:
            content["because"] = [vars(reason) for reason in self.because]
        return content


@dataclass(frozen=True)
class Answer:
    """A query's labels; `exhausted` if any key votes for fewer of those that a filter admits than were asked for."""

    labels: list[ScoredLabel]
    truncated: bool
    exhausted: bool

    def to_dict(self) -> dict[str, Any]:
        """The members of the JSON object, for HTTP, the answer cache and the command line."""
        content: dict[str, Any] = {"labels": [label.to_dict() for label in self.labels]}
        if self.truncated:
            content["truncated"] = True
        if self.exhausted:
            content["exhausted"] = True
        return content


@dataclass(frozen=True)
class Answers:
    """The answers to a batch, and the milliseconds each stage took."""

    answers: list[Answer]
    milliseconds: dict[str, float]


class _Stopwatch:
    """Milliseconds by stage."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to a stage."""
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now


class Predictor:
    """An opened bundle; thread-safe."""

    def __init__(self, bundle: Bundle, threads: int, device: Device = "cpu") -> None:
        self._threads = threads
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.encoder = QueryEncoder(bundle.folder, bundle.manifest.encoder, threads, device)
        self.searcher = Searcher(bundle, device)
        self.values = Values(bundle.value_indptr, bundle.value_indices, len(bundle.labels))
        self._check_shapes()
        self.voters = Voters(bundle.voter_indptr, bundle.voter_indices, self.searcher)

    @classmethod
    def open(cls, bundle: Bundle, threads: int, device: Device = "cpu") -> Predictor:
        """Open a checked bundle's encoder and indexes, and answer once, so that the first user does not wait.

        On `cuda` and `auto`, what cannot go to the GPU stays on the CPU; `on_cpu` says what, and why.

        Raises:
            BundleError: If its parts do not open, do not fit together, or do not answer.
        """
        predictor = cls(bundle, threads, device)
        predictor.warm_up()
        return predictor

    def close(self) -> None:
        """Free the encoder and the indexes and unmap the bundle, in this thread. Only `manifest` stays usable."""
        del self.bundle, self.encoder, self.searcher, self.values, self.voters

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def defaults(self) -> Defaults:
        return self.manifest.defaults

    @property
    def on_cpu(self) -> list[str]:
        """What is not on the GPU that was asked for, and why."""
        return [why for why in (self.encoder.on_cpu, *self.searcher.on_cpu) if why]

    def _check_shapes(self) -> None:
        folder, manifest = self.bundle.folder, self.manifest
        for name, found, expected in (
            ("encoder.onnx", (self.encoder.dim,), (manifest.dim,)),
            ("instance_keys.faiss", self.searcher.instances.shape, (manifest.counts.instances, manifest.dim)),
            ("label_keys.faiss", self.searcher.labels.shape, (manifest.counts.labels, manifest.dim)),
        ):
            if found != expected:
                raise BundleError(
                    f"{folder / name}: manifest expects shape {expected}, found {found}; rebuild with `recollect build`"
                )

    def warm_up(self) -> None:
        """Answer some of the memory's own texts.

        Raises:
            BundleError: If their vectors are no unit vectors.
        """
        rows = np.linspace(0, len(self.bundle.instance_texts) - 1, num=4, dtype=int)
        texts = [self.bundle.instance_texts[row] for row in rows.tolist()]
        if not np.allclose(np.linalg.norm(self.encode(texts), axis=1), 1, atol=1e-3):
            raise BundleError(
                f"{self.bundle.folder / 'encoder.onnx'}: expected unit vectors, found others; build again"
            )
        self.predict(texts, resolve_options(self.defaults))

    def encode(self, queries: Sequence[str]) -> Float[np.ndarray, "query dim"]:
        """Unit vectors of queries."""
        return self.encoder.encode(self.encoder.tokenise(queries))

    def predict(self, queries: Sequence[str], options: AnswerOptions) -> Answers:
        """Answer a batch of queries."""
        return self.predict_together([(queries, options)])[0]

    def predict_together(self, requests: Sequence[tuple[Sequence[str], AnswerOptions]]) -> list[Answers]:
        """Answer several requests at once, each by its own options.

        All their queries are encoded together; those of equal options are searched and ranked together. A request's
        milliseconds are those of the whole: it waited for all of it.
        """
        watch = _Stopwatch()
        queries = [query for asked, _ in requests for query in asked]
        tokens = self.encoder.tokenise(queries)
        watch.lap("tokenize")
        vectors = self.encoder.encode(tokens)
        watch.lap("encode")
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this number for each calling thread
        answers: list[Answer | None] = [None] * len(queries)
        for options, rows in _by_options(requests):
            chosen = Filter(options.allow, options.deny, self.bundle.labels) if options.filtered else None
            # A filtered query is ranked alone: how far it looks must not depend on the batch it came in.
            step = 1 if chosen else max(1, _BLOCK_KEYS // options.top_b)
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                truncated = [tokens.truncated[row] for row in part]
                found = self._answer(vectors[part], truncated, options, chosen, watch)
                for row, answer in zip(part, found, strict=True):
                    answers[row] = answer
        ends = np.cumsum([0, *(len(asked) for asked, _ in requests)]).tolist()
        return [
            Answers([answer for answer in answers[start:stop] if answer is not None], watch.stages)
            for start, stop in itertools.pairwise(ends)
        ]

    def _answer(
        self,
        vectors: Float[np.ndarray, "query dim"],
        truncated: list[bool],
        options: AnswerOptions,
        chosen: Filter | None,
        watch: _Stopwatch,
    ) -> list[Answer]:
        if chosen is None:
            ranking, votes = self._rank(self._search(vectors, options.top_b, options, watch), options)
        else:
            ranking, votes = self._rank_admitted(vectors, options, chosen, watch)
        exhausted = chosen is not None and len(ranking.label) < options.top_k
        terms = explaining(votes) if options.explain else None
        rows = np.searchsorted(ranking.query, np.arange(len(vectors) + 1))
        answers = []
        for query in range(len(vectors)):
            best = slice(rows[query], min(rows[query] + options.top_k, rows[query + 1]))
            labels = [
                self._describe(query, int(label), float(score), terms)
                for label, score in zip(ranking.label[best], ranking.score[best], strict=True)
                if score >= options.threshold
            ]
            answers.append(Answer(labels, truncated[query], exhausted))
        watch.lap("combine")
        return answers

    def _search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, options: AnswerOptions, watch: _Stopwatch
    ) -> Neighbours:
        neighbours = self.searcher.search(vectors, top_b, options.lambda_)
        watch.lap("search")
        return neighbours

    def _rank(self, neighbours: Neighbours, options: AnswerOptions) -> tuple[Ranking, Votes]:
        """Rank the labels that the found keys vote for; the votes are the terms of the scores."""
        votes = cast_votes(neighbours, options.temperature, options.lambda_, self.values)
        return rank(votes, self.values), votes

    def _rank_admitted(
        self, vector: Float[np.ndarray, "1 dim"], options: AnswerOptions, chosen: Filter, watch: _Stopwatch
    ) -> tuple[Ranking, Votes]:
        """Rank the labels that a filter admits, looking as far as it takes to find k of them."""
        neighbours = nearest = self._search(vector, options.top_b, options, watch)
        top_b, farthest = options.top_b, min(self.searcher.keys, MOST_KEYS)
        enough = min(options.top_k, self.voters.answerable(chosen, options.lambda_))
        few = self.voters.few(chosen, options.lambda_)
        while not few:
            ranking, votes = self._rank(neighbours, options)
            ranking = chosen.apply(ranking)
            watch.lap("combine")
            if len(ranking.label) >= enough:
                return ranking, votes
            if top_b >= farthest:
                break
            top_b = min(top_b * _WIDEN, farthest)
            neighbours = self._search(vector, top_b, options, watch)
        explained = options.top_k if options.explain else 0
        return self.voters.rank(vector[0], nearest, chosen.labels, options.temperature, options.lambda_, explained)

    def _describe(self, query: int, label: int, score: float, terms: Votes | None) -> ScoredLabel:
        table = self.bundle.labels
        because = None if terms is None else [self._reason(key, share) for key, share in terms.of(query, label)]
        return ScoredLabel(label, table.uids[label], table.texts[label], score, because)

    def _reason(self, key: int, share: float) -> Reason:
        instances = self.values.instances
        if key < instances:
            return Reason("instance", self.bundle.instance_uids[key], self.bundle.instance_texts[key], share)
        label = key - instances
        return Reason("label", self.bundle.labels.uids[label], self.bundle.labels.texts[label], share)


def _by_options(requests: Sequence[tuple[Sequence[str], AnswerOptions]]) -> Iterator[tuple[AnswerOptions, list[int]]]:
    """Rows of all requests' queries, those of equal options together; filters, which may be large, stay apart."""
    groups: dict[object, tuple[AnswerOptions, list[int]]] = {}
    row = 0
    for nth, (queries, options) in enumerate(requests):
        _, rows = groups.setdefault(nth if options.filtered else options, (options, []))
        rows += range(row, row + len(queries))
        row += len(queries)
    yield from groups.values()
