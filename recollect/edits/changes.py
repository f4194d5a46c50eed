"""Changes: checks what a user wants to change in a memory, and turns it into entries.

Instances and labels have separate names: an instance and a label may have the same uid. A change is complete or not
made: if a part of it is wrong, there are no entries.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from recollect.core.bundle.label_fields import LabelFields, require_storable
from recollect.core.errors import ChangeError, RecollectError, UnknownUidError
from recollect.core.options import check_query, first_problem
from recollect.core.tables.entries import (
    Entry,
    InstanceFields,
    PutCorrection,
    PutInstance,
    PutLabel,
    Record,
    Remove,
)
from recollect.core.tables.snapshot import Snapshot
from recollect.core.texts import CONTROL_CHARACTERS, UidText, require_unicode, require_words
from recollect.core.words.terms import MAX_CHARACTERS

MAX_UID_BYTES, MAX_INSTANCE_LABELS = 1_000, 10_000
# The beginning of the uid of a feedback, so that `forget` removes nothing else.
FEEDBACK = "feedback-"
# Number of uids that an error message names.
_NAMED = 5

# Encodes queries or instances, then labels, as unit vectors.
Encode = Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, "text dim"]]


def _check_uid(uid: str) -> str:
    require_words(uid, "uid")
    if (size := len(uid.encode())) > MAX_UID_BYTES:
        raise ValueError(f"the uid has {size:,} bytes of UTF-8; send at most {MAX_UID_BYTES:,}")
    if found := re.search(CONTROL_CHARACTERS, uid):
        raise ValueError(f"the uid contains the control character {found[0]!r}; send a uid without it")
    return uid


def _check_text(text: str) -> str:
    """Refuse a text of which nothing reads the end: each replica keeps the whole text in memory."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(text):,} characters; send at most its first {MAX_CHARACTERS:,}")
    return require_words(text, "text")


Uid = Annotated[UidText, AfterValidator(_check_uid), Field(min_length=1)]
Text = Annotated[str, AfterValidator(_check_text), Field(min_length=1)]


class _Row(Record):
    uid: Uid
    text: Text

    @field_validator("*")
    @classmethod
    def _check_string(cls, value: Any) -> Any:
        """Refuse a string that UTF-8 or the memory of a replica has no place for."""
        if isinstance(value, str):
            require_unicode(value, "text")
            if len(value) > MAX_CHARACTERS:
                raise ValueError(f"expected at most {MAX_CHARACTERS:,} characters, found {len(value):,}")
        return value


class NewLabel(LabelFields, _Row):
    """A label to insert, or to replace, with its fields. A further field is kept as JSON, under its own name."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        require_storable(self)
        return self


class NewInstance(InstanceFields, _Row):
    """An instance to insert, or to replace. `labels` are the uids of its labels."""

    labels: Annotated[list[Uid], Field(min_length=1, max_length=MAX_INSTANCE_LABELS)]


INSTANCES, LABELS = TypeAdapter(list[NewInstance]), TypeAdapter(list[NewLabel])
UIDS: TypeAdapter[list[str]] = TypeAdapter(list[Uid])
_Checked = TypeVar("_Checked")


def checked(
    adapter: TypeAdapter[_Checked], value: Any, where: str, error: type[RecollectError] = ChangeError
) -> _Checked:
    """Check a value that does not come over HTTP.

    Args:
        adapter: The type of the value, such as `INSTANCES`.
        value: The value.
        where: The place of the value, for the message.
        error: Class of the error.

    Raises:
        RecollectError: If a field is missing, unknown or wrong.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as wrong:
        problem = wrong.errors()[0]
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
        match problem["type"]:
            case "extra_forbidden":
                reason = "unknown field; a memory encodes texts itself and takes no vectors"
            case "missing":
                reason = "required"
            case "model_type":
                reason = f"expected a dict, found {problem['input']!r:.80}"
            case "value_error":
                reason = first_problem(wrong)
            case "too_short":
                reason = "expected at least one"
            case _:
                reason = f"expected {first_problem(wrong)}, found {problem['input']!r:.80}"
        raise error(f"{where}{re.sub('^[.]', ': ', name)}: {reason}") from None


def put(
    memory: Snapshot,
    encode: Encode,
    instances: Sequence[NewInstance],
    labels: Sequence[NewLabel],
    create_labels: bool = False,
) -> list[Entry]:
    """The entries that insert or replace labels and instances.

    Args:
        memory: The memory.
        encode: Encodes all new texts together.
        instances: The instances; their labels are in the memory or in `labels`.
        labels: The labels.
        create_labels: Whether to create the unknown labels of instances; the text of such a label is its uid.

    Raises:
        ChangeError: If a uid occurs twice, or a label is unknown.
    """
    _require_once("instances", [each.uid for each in instances])
    _require_once("labels", [each.uid for each in labels])
    given = {each.uid: each for each in labels}
    named = dict.fromkeys(uid for each in instances for uid in each.labels if uid not in given)
    unknown = [uid for uid in named if memory.labels.position(uid) is None]
    if unknown and not create_labels:
        raise ChangeError(
            f"labels: expected labels of the memory, found {len(unknown):,} unknown: {_name(unknown)}; "
            "add these labels first, or set create_labels"
        )
    rows = [*labels, *(NewLabel(uid=uid, text=uid) for uid in unknown)]
    vectors = encode([each.text for each in instances], [each.text for each in rows])
    return [
        *(
            PutLabel(each.uid, each.text, vector, each.fields())
            for each, vector in zip(rows, vectors[len(instances) :], strict=True)
        ),
        *(
            PutInstance(each.uid, each.text, [*dict.fromkeys(each.labels)], vector, InstanceFields.of(each))
            for each, vector in zip(instances, vectors, strict=False)
        ),
    ]


def remove(memory: Snapshot, instances: Sequence[str], labels: Sequence[str]) -> list[Entry]:
    """The entries that remove instances and labels, by their uids.

    Raises:
        ChangeError: If a uid occurs twice.
        UnknownUidError: If a uid is not in the memory.
    """
    for kind, uids, find in (("instances", instances, memory.instance), ("labels", labels, memory.labels.position)):
        _require_once(kind, uids)
        if unknown := [uid for uid in uids if find(uid) is None]:
            raise UnknownUidError(
                f"{kind}: expected uids of the memory, found {len(unknown):,} unknown: {_name(unknown)}"
            )
    return [*(Remove("instance", uid) for uid in instances), *(Remove("label", uid) for uid in labels)]


def feedback_uid() -> str:
    """A uid for a feedback."""
    return FEEDBACK + uuid.uuid4().hex


def feedback(memory: Snapshot, encode: Encode, uid: str, query: str, label: str, relevant: bool) -> list[Entry]:
    """The entry of a feedback.

    A label that is relevant to a query becomes the label of a new instance. A label that is not relevant gets a
    correction.

    Args:
        memory: The memory.
        encode: Encodes the query.
        uid: Uid of the feedback.
        query: The query.
        label: Uid of the label.
        relevant: Whether the label is relevant to the query.

    Raises:
        ChangeError: If the query is too long, or the label is unknown.
        QueryError: If the query is empty.
    """
    text = check_query(query)
    if len(text) > MAX_CHARACTERS:
        raise ChangeError(f"query: expected at most {MAX_CHARACTERS:,} characters, found {len(text):,}; shorten it")
    if memory.labels.position(label) is None:
        raise ChangeError(f"label: expected a label of the memory, found {label[:80]!r}; add the label first")
    (vector,) = encode([text], [])
    return [PutInstance(uid, text, [label], vector) if relevant else PutCorrection(uid, text, label, vector)]


def undo_feedback(memory: Snapshot, uid: str) -> list[Entry]:
    """The entry that undoes a feedback.

    Raises:
        UnknownUidError: If there is no such feedback.
    """
    if uid.startswith(FEEDBACK):
        if memory.corrections.rows.find(uid) is not None:
            return [Remove("correction", uid)]
        if memory.instance(uid) is not None:
            return [Remove("instance", uid)]
    raise UnknownUidError(f"feedback {uid[:80]!r}: expected the id of a feedback that was not undone before")


def _require_once(kind: str, uids: Sequence[str]) -> None:
    if len(set(uids)) < len(uids):
        twice = [uid for uid, count in Counter(uids).items() if count > 1]
        raise ChangeError(f"{kind}: expected each uid once, found several times: {_name(twice)}")


def _name(uids: Sequence[str]) -> str:
    return ", ".join(repr(uid[:80]) for uid in uids[:_NAMED]) + (", ..." if len(uids) > _NAMED else "")
