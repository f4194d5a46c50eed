"""A reranker on a server: the scores of a query's candidates, with the route of TEI, or of Infinity, vLLM and Jina.

    TEI                      {"query", "texts"} -> [{"index", "score"}]
    Infinity, vLLM, Jina     {"model", "query", "documents"} -> {"results": [{"index", "relevance_score"}]}

A run and a bundle record the scores of a probe, so that another model is recognised. They record the address too, but
only the address of the settings is called.

A query whose scores do not arrive in time, or that the server refuses, is answered without them. After another failed
call, queries are answered without the server for a second; then the next one asks for the scores of the probe first.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import structlog
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import from_json, to_json

from recollect.core.errors import EncoderDownError
from recollect.core.reranker.scorer import LeftOut, Pair, Scored, Scorer
from recollect.core.settings import RerankerAddress, RerankerSettings
from recollect.extras.encoder_server.posts import Posts

log = structlog.get_logger(__name__)

# The query and the texts whose scores identify a model, and the greatest relative difference of a score: servers round
# to half precision, and sum in another order in each batch.
_PROBE = "garden chairs made of steel"
_PROBE_TEXTS = ("furniture for the garden", "medieval history")
_MOST_DIFFERENCE = 0.05
# Maximum size of a response, number of calls at the same time, and seconds without calls after a failure.
_MAX_BYTES, _CALLS, _REST_SECONDS = 4 << 20, 4, 1.0
# Statuses with which a server refuses one query, for example because it is too long.
_REFUSED = 400, 413, 422
# Minimum time limit of a call in a fit.
_BUILD_SECONDS = 60.0


class ServedReranker(BaseModel):
    """A reranker on a server, as a run and a bundle record it.

    Attributes:
        url: The address with which the run was ranked. Nothing calls it: the address comes from the settings.
        scores: The scores of the probe.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str
    model: str
    scores: tuple[float, ...] = Field(min_length=len(_PROBE_TEXTS), max_length=len(_PROBE_TEXTS))


class _FailedError(Exception):
    """A call without scores. The message has the address, so it is for operators only."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class _RefusedError(_FailedError):
    """The server answers, but not this query."""


class RemoteReranker(Scorer):
    """Asks a server for scores; thread-safe.

    Args:
        seconds: Maximum time for the scores of a query.
        expected: The reranker that the server must have. None: `describe` asks for it.
    """

    def __init__(
        self, address: RerankerAddress, token: SecretStr | None, seconds: float, expected: ServedReranker | None = None
    ) -> None:
        self._address, self._seconds, self._expected = address, seconds, expected
        self._posts, self._lock = Posts(address.url, token), threading.Lock()
        self._is_known, self._ask_again = False, 0.0  # whether the probe was right; the end of the rest
        self._report_again = 0.0

    def describe(self) -> ServedReranker:
        """Ask for the reranker, and expect it from now on.

        Raises:
            EncoderDownError: If the server does not answer, or not with scores.
        """
        try:
            scores = self._ask(Pair(_PROBE, [*_PROBE_TEXTS], time.monotonic() + self._seconds))
        except _FailedError as error:
            raise EncoderDownError(str(error)) from None
        self._expected = ServedReranker(
            url=self._address.url, model=self._address.model, scores=tuple(map(float, scores))
        )
        self._is_known = True
        return self._expected

    def score(self, pairs: Sequence[Pair], checkpoint: Callable[[], None] = lambda: None) -> list[Scored]:
        def score(pair: Pair) -> Scored:
            checkpoint()
            return self._score(pair)

        if len(pairs) < 2:
            return [score(pair) for pair in pairs]
        with ThreadPoolExecutor(_CALLS, "reranker") as pool:
            return [*pool.map(score, pairs)]

    def _score(self, pair: Pair) -> Scored:
        if not pair.labels:
            return np.empty(0, dtype=np.float32)
        now = time.monotonic()
        if now < self._ask_again:
            return "server"
        deadline = min(now + self._seconds, pair.deadline)
        if deadline <= now:
            return "deadline"
        try:
            if not self._is_known:
                self._check(deadline)
            return self._ask(pair._replace(deadline=deadline))
        except _FailedError as error:
            if self._is_known and isinstance(error, _RefusedError):
                self._report("reranker_refuses", error)
                return "server"
            if deadline < now + self._seconds and time.monotonic() >= deadline:
                return "deadline"  # of the request: the server may be fast enough for others
            return self._rest(error)

    def _check(self, deadline: float) -> None:
        """Ask for the scores of the probe, and compare them with the recorded ones."""
        assert self._expected is not None
        found = self._ask(Pair(_PROBE, [*_PROBE_TEXTS], deadline))
        expected = np.array(self._expected.scores)
        if not np.allclose(found, expected, rtol=_MOST_DIFFERENCE, atol=_MOST_DIFFERENCE * np.abs(expected).max()):
            raise _FailedError(
                f"{self._address.url}: expected the reranker with which the version was built, found other scores of "
                "the probe; serve that model, or rank and build again"
            )
        self._is_known = True

    def _rest(self, error: _FailedError) -> LeftOut:
        self._report("reranker_down", error)
        self._ask_again, self._is_known = time.monotonic() + _REST_SECONDS, False
        return "server"

    def _report(self, event: str, error: _FailedError) -> None:
        """Log an error, at most once a second."""
        with self._lock:
            now = time.monotonic()
            if now >= self._report_again:
                self._report_again = now + _REST_SECONDS
                log.warning(event, why=str(error.args[0]))  # a server may repeat the query in its reason

    def _ask(self, pair: Pair) -> Float[np.ndarray, " label"]:
        body: dict[str, Any] = {"query": pair.query}
        if self._address.model:
            body |= {"model": self._address.model, "documents": pair.labels}
        else:
            body |= {"texts": pair.labels, "raw_scores": True, "truncate": True}
        where = self._address.url
        try:
            response = self._posts.post(to_json(body), pair.deadline, _MAX_BYTES)
        except TimeoutError:
            raise _FailedError(f"{where}: expected scores in time, found none; set a larger --reranker-ms") from None
        except (OSError, http.client.HTTPException) as error:
            raise _FailedError(f"{where}: expected an answer, found none ({error}); check the address") from None
        if response.status != 200:
            found = f"{where}: expected scores, found status {response.status}; check the server"
            raise (_RefusedError if response.status in _REFUSED else _FailedError)(
                found, self._posts.reason(response.body)
            )
        return self._scores(response.body, len(pair.labels))

    def _scores(self, body: bytes, labels: int) -> Float[np.ndarray, " label"]:
        """The scores in a response, in the order of the labels."""
        try:
            if len(body) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES:,} bytes")
            found = from_json(body)
            rows = found["results"] if isinstance(found, dict) else found
            scores = {row["index"]: row["score"] if "score" in row else row["relevance_score"] for row in rows}
            values = np.array([scores[label] for label in range(labels)], dtype=np.float32)
            if len(scores) != labels or values.shape != (labels,) or not np.isfinite(values).all():
                raise ValueError(f"{len(scores)} scores of {labels} texts, or one that is no finite number")
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _FailedError(
                f"{self._address.url}: expected a score for each text, found another response; check the address, with "
                "#MODEL for the shape of Infinity, vLLM and Jina",
                repr(str(error)[:80]),
            ) from None
        return values


def connect(settings: RerankerSettings) -> tuple[RemoteReranker, dict[str, Any]]:
    """The reranker of the settings, for a fit, in which each query gets a minute or more; and what a run records.

    Raises:
        EncoderDownError: If the server does not answer, or not with scores.
    """
    assert settings.reranker is not None
    seconds = max(settings.reranker_ms / 1e3, _BUILD_SECONDS)
    reranker = RemoteReranker(RerankerAddress.parse(settings.reranker), settings.reranker_token, seconds)
    return reranker, reranker.describe().model_dump()


def open_scorer(recorded: dict[str, Any], settings: RerankerSettings) -> RemoteReranker | None:
    """The reranker of a version; None if the settings have no address.

    Raises:
        ValueError: If the version records no reranker.
    """
    expected = ServedReranker.model_validate(recorded)
    if settings.reranker is None:
        log.warning("reranker_missing", why="--reranker: required for the scores of a version; it answers without them")
        return None
    address = RerankerAddress.parse(settings.reranker)
    return RemoteReranker(address, settings.reranker_token, settings.reranker_ms / 1e3, expected)
