"""A server of vectors, and the model that runs and bundles record.

After a failed call, a thread asks for the vector of a probe, because the failure may be that of one text. If this call
fails, too, other calls fail at once, and the thread asks again every second.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from recollect.core.errors import EncoderDownError, QueryError, SettingsError
from recollect.core.settings import EncoderAddress
from recollect.extras.encoder_server.calls import Calls, FailedCallError, RefusedTextsError

# The text whose vector identifies a model, and the greatest distance of its vector from the recorded one, as a share of
# the length of the recorded one. Unit vectors at this distance have the cosine 0.999.
_PROBE, _MOST_DISTANCE = "Which labels fit this text?", 0.0447
# Number of texts in a call, which all servers accept by default, and number of calls at the same time.
_CALL_TEXTS, _CALLS = 32, 4
# Maximum seconds for an answer to the probe, time between two probes of a server that is down, and the shortest and the
# longest pause before a repeated call.
_PROBE_SECONDS, _REST_SECONDS, _FIRST_PAUSE, _LAST_PAUSE = 10.0, 1.0, 0.1, 10.0

# Gets each event, `encoder_retry`, `encoder_down` or `encoder_up`, and its reason.
Notify = Callable[[str, str], None]


class ServedModel(BaseModel):
    """A model of a server, as a run and a bundle record it.

    Attributes:
        url: The address at which the run was trained. Nothing calls it: the address comes from the settings.
        probe: A text.
        vector: The vector of this text, as the server gave it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str
    model: str = Field(min_length=1)
    dim: int = Field(ge=1)
    probe: str
    vector: tuple[float, ...]

    @model_validator(mode="after")
    def _check_vector(self) -> ServedModel:
        if len(self.vector) != self.dim or not any(self.vector):
            raise ValueError(f"expected a vector of {self.dim} numbers that are not all 0")
        return self

    def address(self, given: str | None, user: str) -> EncoderAddress:
        """The address at which this model is called, that of the settings.

        Args:
            given: `--encoder-url`.
            user: The run or version that needs the model, for the message.

        Raises:
            SettingsError: If the settings have no address.
        """
        if given is None:
            raise SettingsError(
                f"--encoder-url: required for {user}, whose vectors come from a server ({self.url}#{self.model} when "
                "it was trained); set RECOLLECT_ENCODER_URL, which all commands read"
            )
        return EncoderAddress.parse(given, "--encoder-url").or_model(self.model)

    def difference(self, found: Float[np.ndarray, " dim"]) -> str | None:
        """What is wrong with a vector of the probe; None if it is that of this model."""
        recorded = np.array(self.vector, dtype=np.float32)
        if len(found) != self.dim:
            return f"expected vectors of {self.dim} dimensions, found {len(found)}; serve the model {self.model}"
        distance = float(np.linalg.norm(found - recorded) / np.linalg.norm(recorded))
        if distance <= _MOST_DISTANCE:
            return None
        return (
            f"expected the vectors of the model {self.model}, with which the version was built, found others (distance "
            f"{distance:.2f} on the probe); serve that model, or train and build again"
        )


class EmbeddingServer:
    """A server of vectors; thread-safe.

    Args:
        seconds: Time limit of a call with its repetitions, and with the calls of its parts if it is refused.
        notify: Gets the events.
        expected: The model that the server must have. None: `describe` asks for it.

    Attributes:
        problem: Why calls fail at once, for clients, too; None while the server answers.
    """

    def __init__(
        self,
        address: EncoderAddress,
        token: SecretStr | None,
        seconds: float,
        notify: Notify,
        expected: ServedModel | None = None,
    ) -> None:
        self.problem: str | None = None
        self._address, self._seconds, self._notify, self._expected = address, seconds, notify, expected
        self._calls, self._probing = Calls(address, token), threading.Lock()

    def describe(self) -> ServedModel:
        """Ask for the model, and expect it from now on.

        Raises:
            EncoderDownError: If the server does not answer, or not with vectors.
        """
        vector, (url, model) = self._ask_probe(_PROBE), self._address
        values = tuple(vector.tolist())
        self._expected = ServedModel(url=url, model=model, dim=len(vector), probe=_PROBE, vector=values)
        return self._expected

    def difference(self) -> str | None:
        """Ask for the vector of the probe. Return what is wrong with it; None if the model is the expected one.

        Raises:
            EncoderDownError: If the server does not answer, or not with vectors.
        """
        assert self._expected is not None
        found = self._expected.difference(self._ask_probe(self._expected.probe))
        return found and f"{self._address.url}: {found}"

    def vectors(
        self,
        texts: Sequence[str],
        checkpoint: Callable[[], None] = lambda: None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, "text dim"]:
        """The vectors of some texts, as the server gives them. `checkpoint` is called before each call.

        Raises:
            EncoderDownError: If the server does not answer in time, or not with vectors of the expected dimension.
            QueryError: If the server refuses a text.
        """

        def call(start: int) -> Float[np.ndarray, "row dim"]:
            checkpoint()
            found = self._vectors(texts[start : start + _CALL_TEXTS], time.monotonic() + self._seconds)
            progress(len(found))
            return found

        if len(texts) <= _CALL_TEXTS:
            return call(0)
        with ThreadPoolExecutor(_CALLS, "encoder-server") as pool:
            calls = [pool.submit(call, start) for start in range(0, len(texts), _CALL_TEXTS)]
            try:
                return np.concatenate([each.result() for each in calls])
            finally:
                pool.shutdown(cancel_futures=True)

    def _vectors(self, texts: Sequence[str], deadline: float) -> Float[np.ndarray, "text dim"]:
        """The vectors of the texts of a call. If the server refuses them, those of each half, to find the wrong one."""
        try:
            return self._call(texts, deadline)
        except RefusedTextsError as error:
            if len(texts) == 1:
                raise QueryError(
                    f"the server of vectors refuses the text {texts[0][:40]!r} ({error}); send a shorter text, or let "
                    "the server cut texts"
                ) from None
        half = len(texts) // 2
        return np.concatenate([self._vectors(texts[:half], deadline), self._vectors(texts[half:], deadline)])

    def _call(self, texts: Sequence[str], deadline: float) -> Float[np.ndarray, "text dim"]:
        """Call the server, with repetitions."""
        if self.problem is not None:
            raise EncoderDownError(self.problem)
        try:
            return self._repeated(texts, deadline, None if self._expected is None else self._expected.dim)
        except FailedCallError as error:
            if error.is_down and self._probing.acquire(blocking=False):
                arguments = weakref.ref(self), self._probing
                threading.Thread(target=_watch, args=arguments, name="encoder-probe", daemon=True).start()
            raise EncoderDownError(str(error)) from None

    def _ask_probe(self, probe: str) -> Float[np.ndarray, " dim"]:
        """Ask for the vector of a probe. A server that does not answer is not asked again: the address may be wrong."""
        try:
            vector: np.ndarray = self._repeated([probe], self._probe_deadline(), None, also_unanswered=False)[0]
        except FailedCallError as error:
            raise EncoderDownError(f"{self._address.url}: {error.for_operator}") from None
        except RefusedTextsError as error:
            raise EncoderDownError(
                f"{self._address.url}: expected vectors of the model {self._address.model}, found {error}; check the "
                "address and the model"
            ) from None
        return vector

    def _probe_deadline(self) -> float:
        return time.monotonic() + min(self._seconds, _PROBE_SECONDS)

    def _repeated(
        self, texts: Sequence[str], deadline: float, dim: int | None, also_unanswered: bool = True
    ) -> Float[np.ndarray, "text dim"]:
        """Call the server until a deadline, with growing pauses."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._calls.ask(texts, deadline, dim)
            except FailedCallError as error:
                wait = max(error.pause, pause * random.uniform(0.5, 1))  # so that callers do not repeat together
                may_repeat = error.repeat and (also_unanswered or error.answered)
                if not may_repeat or time.monotonic() + wait >= deadline:
                    raise
                self._notify("encoder_retry", f"{self._address.url}: {error.for_operator}")
            time.sleep(wait)
            pause = min(2 * pause, _LAST_PAUSE)

    def is_up(self) -> bool:
        """Ask once for the vector of the probe. Calls fail at once from then on if it is not right."""
        assert self._expected is not None
        before = self.problem
        try:
            vector = self._calls.ask([self._expected.probe], self._probe_deadline(), None)[0]
            self.problem = self._expected.difference(vector)
        except FailedCallError as error:
            if error.is_down:  # a server with too much to do stays what it was
                self.problem = str(error)
        except RefusedTextsError:
            self.problem = "expected the vector of a short text, found that the server refuses it; check the model"
        if before is None and self.problem is not None:
            self._notify("encoder_down", f"{self._address.url}: {self.problem}")
        if before is not None and self.problem is None:
            self._notify("encoder_up", self._address.url)
        return self.problem is None


def _watch(reference: weakref.ref[EmbeddingServer], probing: threading.Lock) -> None:
    """Ask a server, and then every second until it is up, or nothing uses it any more."""
    try:
        while (server := reference()) is not None and not server.is_up():
            del server
            time.sleep(_REST_SECONDS)
    finally:
        probing.release()
