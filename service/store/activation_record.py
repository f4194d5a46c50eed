"""The activation record: the version that all replicas of a store must serve, and its generation.

The record is the file ACTIVATION. Only `activate`, `promote` and `rollback` write it, and each of them raises the
generation by 1. So two records can be compared: the record with the higher generation is newer, even if both name the
same version.

A store that was written before this file existed has only CURRENT and HISTORY. It has generation 0.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from recollect.service.bundle.manifest import check_version, is_version
from recollect.service.errors import StoreError

ACTIVATION, CURRENT, HISTORY = "ACTIVATION", "CURRENT", "HISTORY"

# Highest generation: every JSON reader can represent it exactly.
MAX_GENERATION = (1 << 53) - 1
# Number of previous versions in a record. More versions would make every check of the record slower.
_MAX_PREVIOUS = 100
# Share of the requests that a shadow answers, unless the operator chooses another.
_SHADOW_SHARE = 0.1


def _require_version(name: str) -> str:
    if not is_version(name):
        raise ValueError(f"expected a version's name, found {name!r}")
    return name


Version = Annotated[str, AfterValidator(_require_version)]


class Canary(BaseModel):
    """A version that is tried on a share of the requests while another version is current.

    Attributes:
        version: The version to try.
        share: The share of the requests, in (0, 1].
        shadow: Whether the current version still answers these requests, and the answers are only compared.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    version: Version
    share: float = Field(gt=0, le=1)
    shadow: bool = False

    def __str__(self) -> str:
        return f"{'shadow' if self.shadow else 'canary'} of {100 * self.share:g}%"


class ActivationRecord(BaseModel):
    """The desired state of a store.

    Fields that this release does not know are kept, because the signature covers them.

    Attributes:
        format_version: Format of the record.
        generation: Number of activations and rollbacks of the store so far.
        version: The version that replicas must serve.
        replaced: The version that was current before this record; None if there was none.
        previous: Versions to which rollbacks return, oldest first.
        canary: The version that is tried on a share of the requests, or None.
        action: The action that wrote the record: `activate`, `canary`, `shadow`, `promote` or `rollback`.
        at: The time of the action; None for generation 0.
        by: The user who started the action, as user@host.
        why: The reason that the user gave.
        signature: Signature of `signed_bytes`; None if the record is not signed.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: Literal[1] = 1
    generation: int = Field(ge=0, le=MAX_GENERATION)
    version: Version
    replaced: Version | None = None
    previous: tuple[Version, ...] = ()
    canary: Canary | None = None
    action: str = "activate"
    at: datetime | None = None
    by: str = ""
    why: str = ""
    signature: str | None = None

    def signed_bytes(self) -> bytes:
        """The bytes that a signature covers: all fields except the signature, in a canonical form.

        The first line differs from every manifest, so that no signature of a manifest is one of a record.
        """
        fields = self.model_dump(mode="json", exclude={"signature"}, exclude_none=True)
        return b"recollect activation\n" + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

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


def record_without_file(current: bytes | None, history: bytes | None, name: str) -> ActivationRecord | None:
    """The record of a store without the file ACTIVATION, from its files CURRENT and HISTORY.

    Args:
        current: Content of CURRENT: the current version.
        history: Content of HISTORY: the versions that were current, one a line. If the two files disagree, CURRENT is
            right.
        name: The name of the file CURRENT in an error message.

    Raises:
        StoreError: If CURRENT does not hold a version's name.
    """
    if current is None:
        return None
    version = current.decode(errors="replace").strip()
    if not is_version(version):
        raise StoreError(f"{name}: expected a version's name; run `recollect activate`")
    past = [each for each in (history or b"").decode(errors="replace").split() if is_version(each)]
    if version in past:
        past = past[: len(past) - 1 - past[::-1].index(version)]
    return ActivationRecord(generation=0, version=version, previous=tuple(past[-_MAX_PREVIOUS:]))


def activated(before: ActivationRecord | None, version: str, by: str, why: str) -> ActivationRecord:
    """The record of an activation. An activation removes the canary.

    An activation of the version that is already current also gets a new generation: replicas that refused the version
    then try it again at once.
    """
    return _next(before, version, _previous_of(before, version), "activate", by, why)


def canary_started(before: ActivationRecord, canary: Canary, by: str, why: str) -> ActivationRecord:
    """The record of a canary beside the current version."""
    action = "shadow" if canary.shadow else "canary"
    return _next(before, before.version, before.previous, action, by, why, canary)


def canary_removed(before: ActivationRecord, by: str, why: str) -> ActivationRecord:
    """The record of a rollback while there is a canary: it removes the canary and keeps the version."""
    return _next(before, before.version, before.previous, "rollback", by, why)


def promoted(before: ActivationRecord, canary: Canary, by: str, why: str) -> ActivationRecord:
    """The record that makes the canary current."""
    return _next(before, canary.version, _previous_of(before, canary.version), "promote", by, why)


def rolled_back(before: ActivationRecord, target: int, by: str, why: str) -> ActivationRecord:
    """The record of a rollback to `before.previous[target]`."""
    return _next(before, before.previous[target], before.previous[:target], "rollback", by, why)


def canary_of(version: str, share: float | None, shadow: bool) -> Canary:
    """The canary that an operator asks for. A shadow without a share compares 10% of the requests.

    Raises:
        StoreError: If `version` is not a version's name.
    """
    return Canary(version=check_version(version), share=_SHADOW_SHARE if share is None else share, shadow=shadow)


def default_author() -> str:
    """The user who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _previous_of(before: ActivationRecord | None, version: str) -> tuple[str, ...]:
    """The versions to which rollbacks return after `version` becomes current."""
    if before is None:
        return ()
    return before.previous if before.version == version else (*before.previous, before.version)


def _next(
    before: ActivationRecord | None,
    version: str,
    previous: tuple[str, ...],
    action: str,
    by: str,
    why: str,
    canary: Canary | None = None,
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
        canary=canary,
        action=action,
        at=datetime.now(UTC),
        by=by,
        why=why,
    )
