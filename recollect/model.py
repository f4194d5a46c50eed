"""A model: one version of a store, opened to answer queries in this process.

The Python API, the command line, the evaluation and the tests open versions here. A server opens versions through
`service/versions`, which also checks free memory and golden queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from pydantic import ValidationError

from recollect.core.answers import Answer, ScoredLabel
from recollect.core.bundle.manifest import Manifest
from recollect.core.errors import QueryError, SettingsError
from recollect.core.options import (
    AnswerOptions,
    ChosenOptions,
    check_query,
    checked_options,
    chosen_options,
    first_problem,
)
from recollect.core.settings import ConnectionSettings, Device, default_live
from recollect.core.system.threads import threads_or_cores
from recollect.core.tables.entries import Entry
from recollect.core.tables.snapshot import Snapshot
from recollect.core.vectors import AnyQuery, check_vector, require_without_words
from recollect.edits import changes
from recollect.edits.changes import INSTANCES, LABELS, UIDS, Encode, checked
from recollect.edits.live import LivePredictor
from recollect.edits.log import MemoryLog
from recollect.store.store import Store

# A vector that a user gives: a list or an array of numbers.
Vector = Sequence[float] | np.ndarray
# The use of the live entries of a store.
Live = Literal["off", "read", "write"]


def open_model(
    store: str | Path,
    version: str = "current",
    verify_key: Path | None = None,
    bundle_cache: Path | None = None,
    threads: int = 1,
    device: Device = "cpu",
    live: Live | None = None,
    connections: ConnectionSettings | None = None,
) -> Model:
    """Open a version of a store; `recollect.open` describes the arguments.

    Args:
        connections: The connections to Milvus and to a server of vectors, for a version that needs them; None means
            those of the environment variables.

    Raises:
        StoreError: If the store or the version does not exist.
        BundleError: If the bundle is damaged, or is not signed by a key in `verify_key`.
        MemoryLogError: If the log of the store is damaged.
        KeyFileError: If `verify_key` is not a file of Ed25519 public keys.
        SettingsError: If an argument has a wrong value, or the keys are in Milvus, and its address is not given.
        EngineError, EncoderDownError: If the keys are in Milvus, or the vectors come from a server, and it does not
            answer.
    """
    if threads < 0:
        raise SettingsError(f"threads: expected 0 or more, found {threads}")
    if device not in get_args(Device):
        raise SettingsError(f"device: expected one of {', '.join(get_args(Device))}; found {device!r}")
    live = live or default_live(verify_key)
    if live not in get_args(Live):
        raise SettingsError(f"live: expected one of {', '.join(get_args(Live))}; found {live!r}")
    opened = Store(store, verify_key, bundle_cache)
    bundle = opened.open(opened.resolve(version))
    predictor = LivePredictor.open(bundle, threads_or_cores(threads), device, connections=connections)
    if live != "off":
        predictor.follow(MemoryLog.of(opened, bundle.manifest, predictor.encode))
        if live == "read":
            predictor.log = None
    return Model(predictor)


class Model:
    """An open version that answers queries.

    Several threads may use one model at the same time. A model has no `close` method: garbage collection frees its
    memory.

    `add`, `remove`, `learn` and `forget` change the memory of this model. Each of them returns after the change is
    complete: `predict` then uses it. Without `live="write"`, the store does not change, and other processes do not see
    the change.
    """

    def __init__(self, predictor: LivePredictor) -> None:
        self.predictor = predictor

    @property
    def version(self) -> str:
        return self.predictor.version

    @property
    def manifest(self) -> Manifest:
        """Properties of the version: `counts`, `dim`, `encoder`, `index`, `defaults`, `metrics`, `created`."""
        return self.predictor.manifest

    @overload
    def predict(self, query: str, **options: Any) -> list[ScoredLabel]: ...

    @overload
    def predict(self, query: Sequence[str], **options: Any) -> list[list[ScoredLabel]]: ...

    @overload
    def predict(self, *, vector: Vector, **options: Any) -> list[ScoredLabel]: ...

    def predict(
        self, query: str | Sequence[str] | None = None, *, vector: Vector | None = None, **options: Any
    ) -> list[ScoredLabel] | list[list[ScoredLabel]]:
        """Return the labels that fit a text, best first; for several texts, return one such list for each text.

        Each label has `uid`, `text` and `score`, and `probability` if the version gives probabilities; with
        `explain=True` also `because`, the terms of its score.

        Args:
            query: One text, or several.
            vector: In place of a text, its vector by the encoder of the version (see `answer`).
            options: The fields of `recollect.core.options.AnswerOptions`, such as `top_k`, with the bounds of the
                HTTP interface. An option that is absent or None gets its default.

        Raises:
            QueryError: If a text is empty or a vector wrong, or an option is unknown, out of range, or needs
                probabilities that the version does not give.
        """
        if (query is None) == (vector is None):
            raise QueryError(f"expected a query or a vector, found {'neither' if query is None else 'both'}")
        if vector is not None:
            return self.answer(vectors=[vector], **options)[0].labels
        if isinstance(query, str):
            return self.answer([query], **options)[0].labels
        return [answer.labels for answer in self.answer(query or (), **options)]

    def answer(
        self, queries: Sequence[str] = (), *, vectors: Sequence[Vector] | np.ndarray | None = None, **options: Any
    ) -> list[Answer]:
        """Answer several texts like `predict`; each `Answer` also has `truncated`, `exhausted`, `without_words`
        and, with `rerank`, `reranked` and `left_out`.

        Args:
            vectors: Vectors in place of texts, with the dimension `manifest.dim`: those that the encoder of the version
                gives, with its adapter. Without words, keys that share words with a query have no vote, and no ranker
                orders the labels; `without_words` says that this changes the answer.
        """
        chosen = _check_options(options)
        resolved = checked_options(self.manifest, **chosen)
        if vectors is None:
            asked: list[AnyQuery] = [check_query(query) for query in queries]
        elif len(queries):
            raise QueryError("expected queries or vectors, found both")
        else:
            require_without_words(self.manifest, resolved, chosen)
            asked = [check_vector(vector, self.manifest) for vector in vectors]
        return self.predictor.predict(asked, resolved).answers if asked else []

    def resolve(self, **options: Any) -> AnswerOptions:
        """Check the options of `predict`, and complete them with the defaults of the version."""
        return checked_options(self.manifest, **_check_options(options))

    @property
    def sequence(self) -> int:
        """Number of the last change of this model's memory; 0 before the first one."""
        return self.predictor.memory.sequence

    def add(
        self,
        instances: Iterable[Mapping[str, Any]] = (),
        labels: Iterable[Mapping[str, Any]] = (),
        create_labels: bool = False,
    ) -> int:
        """Insert or replace labels and instances, by their uids, and return the number of the last change.

        Args:
            instances: Instances with `uid`, `text`, `labels` (uids), and optionally the other fields of
                `recollect.core.tables.entries.InstanceFields`.
            labels: Labels with `uid` and `text`.
            create_labels: Whether to create the labels of instances that neither the memory nor `labels` has. The text
                of such a label is its uid.

        Raises:
            ChangeError: If a field is missing, unknown or wrong, a uid occurs twice, or a label is unknown. Nothing is
                changed.
        """
        new_instances, new_labels = checked(INSTANCES, instances, "instances"), checked(LABELS, labels, "labels")

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            return changes.put(memory, encode, new_instances, new_labels, create_labels)

        return self.predictor.change(make).sequence

    def remove(self, instances: Iterable[str] = (), labels: Iterable[str] = ()) -> int:
        """Remove instances and labels by their uids, and return the number of the last change.

        An instance without another label is removed with its label.

        Raises:
            ChangeError: If a uid occurs twice. Nothing is changed.
            UnknownUidError: If a uid is not in the memory. Nothing is changed.
        """
        instance_uids, label_uids = checked(UIDS, instances, "instances"), checked(UIDS, labels, "labels")
        return self.predictor.change(lambda memory, _: changes.remove(memory, instance_uids, label_uids)).sequence

    def learn(self, query: str, label: str, relevant: bool = True) -> str:
        """Learn that a label fits a query, or that it does not fit.

        A label that fits votes for similar queries from now on. A label that does not fit gets a lower score for
        similar queries, and the score 0 for the same query.

        Args:
            label: Uid of the label.

        Returns:
            The id for `forget`.

        Raises:
            ChangeError: If the query is too long, or the label is unknown.
            QueryError: If the query is empty.
        """
        (label,) = checked(UIDS, [label], "label")
        uid = changes.feedback_uid()

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            return changes.feedback(memory, encode, uid, query, label, relevant)

        self.predictor.change(make)
        return uid

    def forget(self, uid: str) -> int:
        """Undo what `learn` did, by the id that it returned; return the number of the last change.

        Raises:
            UnknownUidError: If there is no such feedback, or it was undone before.
        """
        checked(UIDS, [uid], "feedback")
        return self.predictor.change(lambda memory, _: changes.undo_feedback(memory, uid)).sequence


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    try:
        return chosen_options(ChosenOptions.model_validate(given, by_alias=False, by_name=True))
    except ValidationError as error:
        problem = error.errors()[0]
        name = problem["loc"][0]
        if problem["type"] == "extra_forbidden":
            known = ", ".join(sorted(ChosenOptions.model_fields))
            raise QueryError(f"{name}: unknown option; known: {known}") from None
        try:
            found = f"{problem['input']!r:.200}"
        except ValueError:  # Python does not write an integer of thousands of digits
            found = "an integer that is too large"
        raise QueryError(f"{name}: expected {first_problem(error)}; found {found}") from None
