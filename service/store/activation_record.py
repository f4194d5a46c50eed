"""The activation record: the versions that all replicas of a store must open, and its generation.

The record is the file ACTIVATION. Only `activate` and `rollback` write it, and each of them raises the generation by 1.
So two records can be compared: the record with the higher generation is newer, even if both name the same version.
"""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from recollect.service.bundle.manifest import is_version
from recollect.service.errors import StoreError

ACTIVATION, CURRENT = "ACTIVATION", "CURRENT"

# Highest generation: every JSON reader can represent it exactly.
MAX_GENERATION = (1 << 53) - 1
# Number of previous versions in a record. More versions would make every check of the record slower.
_MAX_PREVIOUS = 100


def _require_version(name: str) -> str:
    if not is_version(name):
        raise ValueError(f"expected a version's name, found {name!r}")
    return name


Version = Annotated[str, AfterValidator(_require_version)]


class ActivationRecord(BaseModel):
    """The desired state of a store.

    Attributes:
        format_version: Format of the record.
        generation: Number of activations and rollbacks of the store so far.
        version: The version that replicas must serve.
        replaced: The version that was current before this record; None if there was none.
        previous: Versions to which rollbacks return, oldest first.
        candidate: The version that replicas must open beside the current one, or None.
        action: The action that wrote the record: `activate`, `candidate` or `rollback`.
        at: The time of the action.
        by: The user who started the action, as user@host.
        why: The reason that the user gave.
    """

    model_config = ConfigDict(frozen=True)

    format_version: Literal[1] = 1
    generation: int = Field(ge=0, le=MAX_GENERATION)
    version: Version
    replaced: Version | None = None
    previous: tuple[Version, ...] = ()
    candidate: Version | None = None
    action: str = "activate"
    at: datetime | None = None
    by: str = ""
    why: str = ""

    @property
    def to_open(self) -> set[str]:
        """The versions that replicas must open."""
        return {self.version} if self.candidate is None else {self.version, self.candidate}

    def file_content(self) -> bytes:
        """The content of the file ACTIVATION."""
        return self.model_dump_json(indent=1, exclude_none=True).encode() + b"\n"


def parse_activation(content: bytes, name: str) -> ActivationRecord:
    """Parse the content of the file ACTIVATION. `name` is the file's name in an error message.

    Raises:
        StoreError: If the content is not an activation record.
    """
    try:
        return ActivationRecord.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "JSON"
        raise StoreError(
            f"{name}: expected an activation record, found a wrong one ({where}: {problem['msg']}); "
            "run `recollect activate`"
        ) from None


def activated(before: ActivationRecord | None, version: str, by: str, why: str) -> ActivationRecord:
    """The record of an activation. An activation removes the candidate.

    An activation of the version that is already current also gets a new generation: replicas that refused the version
    then try it again at once.
    """
    previous = before.previous if before else ()
    if before is not None and before.version != version:
        previous = (*previous, before.version)
    return _next(before, version, previous, "activate", by, why)


def candidate_added(before: ActivationRecord, candidate: str, by: str, why: str) -> ActivationRecord:
    """The record of a candidate beside the current version. It replaces another candidate."""
    return _next(before, before.version, before.previous, "candidate", by, why, candidate)


def candidate_removed(before: ActivationRecord, by: str, why: str) -> ActivationRecord:
    """The record of a rollback while there is a candidate: it removes the candidate and keeps the version."""
    return _next(before, before.version, before.previous, "rollback", by, why)


def rolled_back(before: ActivationRecord, target: int, by: str, why: str) -> ActivationRecord:
    """The record of a rollback to `before.previous[target]`."""
    return _next(before, before.previous[target], before.previous[:target], "rollback", by, why)


def default_author() -> str:
    """The user who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _next(
    before: ActivationRecord | None,
    version: str,
    previous: tuple[str, ...],
    action: str,
    by: str,
    why: str,
    candidate: str | None = None,
) -> ActivationRecord:
    if before and before.generation == MAX_GENERATION:
        raise StoreError(
            f"{ACTIVATION}: expected a generation below {MAX_GENERATION}, found the highest one, which no activation "
            f"can follow: another program wrote it; remove the wrong content from {ACTIVATION} and LOG"
        )
    return ActivationRecord(
        generation=before.generation + 1 if before else 1,
        version=version,
        replaced=before.version if before else None,
        previous=previous[-_MAX_PREVIOUS:],
        candidate=candidate,
        action=action,
        at=datetime.now(UTC),
        by=by,
        why=why,
    )
