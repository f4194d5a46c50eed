"""The predictor answers queries with one open bundle, for the service, the command line and the evaluation."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import faiss
import numpy as np
from jaxtyping import Float

from recollect.core.answers import NO_FIELDS, Answer, Answers, ScoredLabel, Stopwatch
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.label_fields import name_of
from recollect.core.bundle.manifest import Defaults
from recollect.core.encoder import TextEncoder
from recollect.core.errors import BundleError, EncoderDownError, EngineError, ServiceError
from recollect.core.memory import LiveMemory, Memory
from recollect.core.options import AnswerOptions, group_by_options, resolve_options
from recollect.core.rank import Queries, RankedLabels, rank, search
from recollect.core.reranker.assign import assigned_counts
from recollect.core.search.filters import LabelFilter
from recollect.core.search.searcher import Engine
from recollect.core.settings import ConnectionSettings, Device
from recollect.core.tables.entries import LoggedEntry
from recollect.core.tables.label_search import LabelSearch
from recollect.core.vectors import AnyQuery, without_words

# A query that takes longer is not computed by the event loop, which answers all requests.
_QUICK_MILLISECONDS = 5.0

_Opened = TypeVar("_Opened", bound="Predictor")


class Predictor:
    """An open bundle that answers queries; thread-safe.

    Attributes:
        memory: The memory that answers; `apply` replaces it.
        bundle_memory: The memory of the bundle, without live entries.
        usual_options: Options of a caller that chose none.
        milliseconds: CPU time to search and rank one query, when the bundle was opened; infinite before `warm_up`.
        block_keys: Number of keys whose votes are in memory at the same time; this limits the memory for a large batch,
            and the time between two checkpoints.
    """

    block_keys = 16_384

    def __init__(
        self, bundle: Bundle, threads: int, device: Device = "cpu", connections: ConnectionSettings | None = None
    ) -> None:
        self._threads = threads
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.encoder = TextEncoder.of(bundle, threads, device, connections=connections)
        bundle.require_shape("encoder.onnx", (self.encoder.dim,), (bundle.manifest.dim,))
        self._live = LiveMemory(bundle, device, connections, threads)
        self.memory = self.bundle_memory = self._live.apply([])
        self.label_search = LabelSearch(bundle.labels)
        self.usual_options = resolve_options(self.defaults)
        self.milliseconds = math.inf
        self._write = threading.RLock()  # of `memory`
        bundle.components.release_unused()

    @classmethod
    def open(
        cls: type[_Opened],
        bundle: Bundle,
        threads: int,
        device: Device = "cpu",
        pause: Callable[[], None] | None = None,
        connections: ConnectionSettings | None = None,
    ) -> _Opened:
        """Open the encoder and the indexes of a checked bundle, and warm them up, so that the first query is fast.

        With device `cuda` or `auto`, an encoder or index that cannot use the GPU runs on the CPU; `cpu_reasons` gives
        the reasons. `pause` is called between the steps, so that a caller can slow them down. `connections`
        are those to the engine of the keys and to a server of vectors; None reads the environment variables.

        Raises:
            BundleError: If a file does not open, the files do not fit together, or the encoder is wrong.
            EngineError, EncoderDownError, SettingsError: If the keys are in an engine, or the vectors come from a
                server, and it does not answer or is not given.
        """
        predictor = cls(bundle, threads, device, connections)
        try:
            predictor.warm_up(pause)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def close(self) -> None:
        """Free the encoder and the indexes, and unmap the files of the bundle, in the calling thread.

        Components that another open predictor shares stay open. After this, only `manifest` can be used.
        """
        components = self.bundle.components
        self._live.searcher.close()
        del self.bundle, self.encoder, self.memory, self.bundle_memory, self.label_search, self._live
        components.close()

    @property
    def engine(self) -> Engine | None:
        """The connection to the engine of the keys; None if they are in files of the bundle."""
        return self._live.searcher.engine

    @property
    def problem(self) -> ServiceError | None:
        """The reason why no query can be answered at present: a program that the version needs does not answer."""
        if self.engine is not None and self.engine.problem is not None:
            return EngineError(self.engine.problem)
        return None if self.encoder.problem is None else EncoderDownError(self.encoder.problem)

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def is_faster_together(self) -> bool:
        """Whether several queries take clearly less time together than one after the other.

        With a static encoder, a quarter of the time is the overhead of calls, which a batch has only once. With a
        server of vectors, a batch is one call.
        """
        return self.manifest.encoder.kind != "transformer"

    @property
    def quick_cost(self) -> float:
        """The highest cost (see `request_cost`) of a query that is quick enough for the event loop to compute it.

        A query with cost c takes at most (1 + c) / 2 times as long as a normal one. A call of an engine or of a server
        of vectors may block.
        """
        if self.engine is not None or self.manifest.encoder.kind != "static":
            return 0.0
        return 2 * _QUICK_MILLISECONDS / self.milliseconds - 1

    @property
    def defaults(self) -> Defaults:
        return self.manifest.defaults

    @property
    def cpu_reasons(self) -> list[str]:
        """The reasons why the encoder or an index does not use the requested GPU."""
        return [reason for reason in (self.encoder.cpu_reason, *self.bundle_memory.searcher.cpu_reasons) if reason]

    def apply(self, entries: Sequence[LoggedEntry], digest: bytes | None = None) -> Memory:
        """Apply entries of this version's log, in order, and return the memory with them.

        Searches that begin later use this memory. Entries that were applied before change nothing. `digest` is that of
        the log up to the last entry, if there is a log.
        """
        with self._write:
            self.memory = self._live.apply(entries, digest)
            return self.memory

    def warm_up(self, pause: Callable[[], None] | None = None) -> None:
        """Answer some training queries of the bundle, so that the first real query is fast; check for unit vectors."""
        texts = self.bundle.instances.texts
        for row in np.linspace(0, len(texts) - 1, num=4, dtype=int).tolist():
            text = texts[row]
            vector = self.encoder.encode_known(text)
            if self.manifest.encoder.normalised and not np.isclose(np.linalg.norm(vector), 1, atol=1e-3):
                raise BundleError(
                    f"{self.bundle.folder / 'encoder.onnx'}: expected unit vectors, found vectors of another length; "
                    "build the bundle again"
                )
            start = time.thread_time()
            self.answer(vector, self.usual_options, [text])
            self.milliseconds = min(self.milliseconds, 1e3 * (time.thread_time() - start))
            if self.manifest.has_cross_encoder and not self.usual_options.rerank:
                self.answer(vector, resolve_options(self.defaults, rerank=True), [text])  # measures its time
            if pause is not None:
                pause()

    def encode(self, queries: Sequence[str], labels: Sequence[str] = ()) -> Float[np.ndarray, "text dim"]:
        return self.encoder.encode_texts(queries, labels)

    def answer(
        self,
        vectors: Float[np.ndarray, "query dim"],
        options: AnswerOptions,
        queries: Sequence[str] | None = None,
        memory: Memory | None = None,
    ) -> list[Answer]:
        """Answer queries that are encoded already, without a filter.

        Without the texts of the queries, words have no share in the scores, and the labels are in order of score.
        Without a memory, the present one answers.
        """
        faiss.omp_set_num_threads(self._threads)
        memory = memory or self.memory
        return self._answer(memory, queries, vectors, [False] * len(vectors), options, None, Stopwatch())

    def predict(self, queries: Sequence[AnyQuery], options: AnswerOptions) -> Answers:
        """Answer the queries of one request, which are all texts or all vectors."""
        return self.predict_together([(queries, options)])[0]

    def predict_together(
        self,
        requests: Sequence[tuple[Sequence[AnyQuery], AnswerOptions]],
        checkpoint: Callable[[], None] = lambda: None,
        deadlines: Sequence[float] = (),
    ) -> list[Answers]:
        """Answer several requests together, each with its own options.

        All queries are encoded together. Queries with equal options are searched and ranked together. Every request
        gets the times of the whole call, because it waits until all requests are answered.
        `checkpoint` is called between the blocks of the computation; an error that it raises stops the computation.
        `deadlines` are those of the requests, as times of `time.monotonic`; empty if there are none. A cross-encoder
        that would take longer is left out.
        """
        watch = Stopwatch()
        queries = [query for group, _ in requests for query in group]
        due = [math.inf] * len(queries)
        if deadlines:
            due = [time_ for (group, _), time_ in zip(requests, deadlines, strict=True) for _ in group]
        vectors, cut = self._vectors(queries, checkpoint, watch)
        memory = self.memory
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this number per calling thread
        answers: list[Answer | None] = [None] * len(queries)
        # A query with a filter is ranked alone: the number of keys that are retrieved for it must not depend on its
        # batch.
        groups = [
            (options, rows, 1 if options.filtered else max(1, self.block_keys // options.top_b))
            for options, rows in group_by_options(requests)
        ]
        blocks = sum(math.ceil(len(rows) / step) for _, rows, step in groups)  # that are not ranked yet
        for options, rows, step in groups:
            label_filter = memory.filters.of(options)
            for start in range(0, len(rows), step):
                checkpoint()
                part = rows[start : start + step]
                truncated = [cut[row] for row in part]
                texts = [query for row in part if isinstance(query := queries[row], str)]
                used = options if texts else without_words(self.manifest, options)
                now = time.monotonic()
                times = [now + (due[row] - now) / blocks for row in part]  # each block gets an equal share of the time
                blocks -= 1
                ranked = self._answer(
                    memory, texts or None, vectors[part], truncated, used, label_filter, watch, times, checkpoint
                )
                for row, answer in zip(part, ranked, strict=True):
                    answers[row] = answer if used is options else dataclasses.replace(answer, without_words=True)
        ends = np.cumsum([0, *(len(group) for group, _ in requests)]).tolist()
        return [
            Answers([answer for answer in answers[start:stop] if answer is not None], watch.stages, memory.sequence)
            for start, stop in itertools.pairwise(ends)
        ]

    def _vectors(
        self, queries: Sequence[AnyQuery], checkpoint: Callable[[], None], watch: Stopwatch
    ) -> tuple[Float[np.ndarray, "query dim"], list[bool]]:
        """Encode the queries that are texts. Return the vectors of all, and whether each was truncated."""
        tokens = self.encoder.tokenise([query for query in queries if isinstance(query, str)])
        watch.lap("tokenize")
        encoded = self.encoder.encode(tokens, checkpoint)
        watch.lap("encode")
        if len(encoded) == len(queries):
            return encoded, tokens.truncated
        texts = zip(encoded, tokens.truncated, strict=True)
        pairs = [next(texts) if isinstance(query, str) else (query.vector, False) for query in queries]
        return np.array([vector for vector, _ in pairs]), [truncated for _, truncated in pairs]

    def _answer(
        self,
        memory: Memory,
        queries: Sequence[str] | None,
        vectors: Float[np.ndarray, "query dim"],
        truncated: list[bool],
        options: AnswerOptions,
        label_filter: LabelFilter | None,
        watch: Stopwatch,
        deadlines: Sequence[float] = (),
        checkpoint: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """Answer queries that have equal options. If the options have a filter, there is only one query."""
        asked = Queries(vectors)
        if queries is not None:
            asked = Queries.of(memory, queries, vectors, options, deadlines, checkpoint)
        found = search(memory, asked, options, watch)
        ranked = rank(memory, asked, found, options, watch, label_filter)
        ranking, chances, offsets = ranked.ranking, ranked.probabilities, ranked.ranking.offsets
        counts = np.minimum(np.diff(offsets), options.top_k)
        exhausted = label_filter is not None and len(ranking.label) < options.top_k
        if options.assign and chances is not None:
            counts = assigned_counts(chances, offsets, options.top_k)
        labels, scores = ranking.label.tolist(), ranking.score.tolist()
        probabilities = [None] * len(labels) if chances is None else chances.tolist()
        answers = []
        for query, (start, count) in enumerate(zip(offsets[:-1].tolist(), counts.tolist(), strict=True)):
            part = slice(start, start + count)
            rows = [
                (label, score, probability)
                for label, score, probability in zip(labels[part], scores[part], probabilities[part], strict=True)
                if score >= options.threshold and (probability is None or probability >= options.min_probability)
            ]
            left_out = ranked.left_out(query) if len(asked.texts) else "text"
            answer = Answer(_describe(ranked, query, rows, options), truncated[query], exhausted)
            if options.rerank:
                answer = dataclasses.replace(answer, reranked=left_out is None, left_out=left_out)
            answers.append(answer)
        watch.lap("combine")
        return answers


def _describe(
    ranked: RankedLabels, query: int, rows: list[tuple[int, float, float | None]], options: AnswerOptions
) -> list[ScoredLabel]:
    """The labels of one query's answer, from their positions, scores and probabilities."""
    labels, explain = ranked.memory.labels, options.explain
    uids, texts, have_fields = labels.uids, labels.texts, labels.have_fields
    because = ranked.reasons(query, [label for label, *_ in rows]) if explain else [None] * len(rows)
    described = []
    for (label, score, probability), terms in zip(rows, because, strict=True):
        text, fields = texts[label], labels.fields_of(label) if have_fields else None
        described.append(
            ScoredLabel(
                position=label,
                uid=uids[label],
                name=name_of(fields, text, options.language) if fields else text,
                text=text,
                score=score,
                because=terms,
                probability=probability,
                ranked_by=ranked.logit_terms(query, label) if explain else None,
                fields={name: fields[name] for name in options.fields if name in fields} if fields else NO_FIELDS,
            )
        )
    return described
