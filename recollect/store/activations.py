"""The activations of a store: numbered files, of which the highest says what the replicas must serve.

    activations/00000001.json  00000002.json  ...

Each `activate` and `rollback` creates the next file. So the folder is also the audit log, and of two operators who act
at the same time one wins. No file is ever changed or removed.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from recollect.core.bundle.manifest import is_version
from recollect.core.errors import ActivationConflictError, StoreError
from recollect.store.object_folder import StoreFiles

_FOLDER = "activations"
_NAME = re.compile(r"(\d{8})\.json")
_MAX_GENERATION = 99_999_999
# Number of previous versions in a record. More versions would make every check of the record slower.
_MAX_PREVIOUS = 100
# Files that `all` reads at the same time: a server answers each request after some milliseconds.
_READ_AT_ONCE = 16

Action = Literal["activate", "candidate", "rollback"]


def _require_version(name: str) -> str:
    if not is_version(name):
        raise ValueError(f"expected a version's name, found {name!r}")
    return name


Version = Annotated[str, AfterValidator(_require_version)]


class ActivationRecord(BaseModel):
    """The content of one file: the versions that replicas must open, and who activated them.

    Attributes:
        generation: Number of activations and rollbacks of the store so far; the number in the file's name.
        candidate: The version that replicas must open beside it, or None.
        replaced: The version that was current before this record; None if there was none.
        previous: Versions to which rollbacks return, oldest first.
        by: The user who started the action, as user@host, or the name of an API key.
        host: The machine on which the action ran.
        token: Random digits, so that two writers never write the same content.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    generation: int = Field(ge=1, le=_MAX_GENERATION)
    version: Version
    candidate: Version | None = None
    replaced: Version | None = None
    previous: tuple[Version, ...] = ()
    action: Action
    at: datetime
    by: str
    host: str = ""
    why: str = ""
    token: str = ""

    @property
    def to_open(self) -> set[str]:
        """The versions that replicas must open."""
        return {self.version} if self.candidate is None else {self.version, self.candidate}


class Activations:
    """The activations of one store. Several threads may use one object."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._last: ActivationRecord | None = None

    def current(self) -> ActivationRecord | None:
        """The highest record; None if there is none.

        The first call lists the folder. Later calls read the record that was found last, and probe the next numbers.

        Raises:
            StoreError: If the record is damaged, a file is missing, or the folder cannot be read.
        """
        with self._lock:  # otherwise a slow thread could return an older record than a fast one did before
            last = self._last
            number = last.generation if last else self._highest()
            record = self._read(number) if number else None
            if last is not None and record != last:
                raise StoreError(
                    f"{self._path(number)}: expected the activation of {last.version} that was read before, found "
                    f"{'none' if record is None else f'one of {record.version}'}; run `recollect log`, and restart the "
                    "replicas if the store was restored from a backup"
                )
            while (following := self._read(number + 1)) is not None:
                number, record = number + 1, following
            self._last = record
            return record

    def all(self) -> list[ActivationRecord]:
        """All records, oldest first."""
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            records = list(pool.map(self._read, range(1, self._highest() + 1)))
        return [record for record in records if record is not None]

    def append(
        self,
        before: ActivationRecord | None,
        action: Action,
        version: str,
        previous: tuple[str, ...],
        candidate: str | None = None,
        by: str | None = None,
        why: str = "",
    ) -> ActivationRecord:
        """Create the record after `before`, and return it. The other arguments are its fields.

        Raises:
            ActivationConflictError: If another process was faster; the message says who did what.
        """
        record = ActivationRecord(
            generation=before.generation + 1 if before else 1,
            version=version,
            candidate=candidate,
            replaced=before.version if before else None,
            previous=previous[-_MAX_PREVIOUS:],
            action=action,
            at=datetime.now(UTC),
            by=by or _user_of_process(),
            host=socket.gethostname(),
            why=why,
            token=secrets.token_hex(8),
        )
        content = record.model_dump_json(indent=1, exclude_none=True).encode() + b"\n"
        if self._files.create(_name(record.generation), content):
            return record
        winner = self._read(record.generation)
        raise ActivationConflictError(
            f"{self._path(record.generation)}: {_describe(winner) if winner else 'another process was faster'}; "
            "this command changed nothing: see `recollect log`, then repeat it if it is still right"
        )

    def _highest(self) -> int:
        """The highest number; 0 if there is none. A gap in the numbers is a StoreError."""
        if not self._files.can_list:
            return self._highest_by_probing()
        names = (_NAME.fullmatch(name) for name in self._files.names(_FOLDER))
        numbers = [int(match[1]) for match in names if match]
        for expected, number in enumerate(numbers, start=1):
            if number != expected:
                raise StoreError(
                    f"{self._path(expected)}: expected a file for each number up to {numbers[-1]}, found none; restore "
                    "the file from a backup or from a copy of the store"
                )
        return len(numbers)

    def _highest_by_probing(self) -> int:
        """The highest number in a store that cannot list its files, found in about 2 log2(n) requests."""
        if not self._has(1):
            return 0
        low, high = 1, 2
        while self._has(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has(middle) else (low, middle)
        return low

    def _has(self, number: int) -> bool:
        return self._files.read(_name(number)) is not None

    def _read(self, number: int) -> ActivationRecord | None:
        content = self._files.read(_name(number))
        return None if content is None else _parse(content, number, self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._files.name}/{_name(number)}"


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:08d}.json"


def _parse(content: bytes, number: int, path: str) -> ActivationRecord:
    try:
        record = ActivationRecord.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        found = f"a wrong one ({'.'.join(map(str, problem['loc'])) or 'JSON'}: {problem['msg']})"
    else:
        if record.generation == number:
            return record
        found = f"the record of generation {record.generation}"
    raise StoreError(
        f"{path}: expected an activation record, found {found}; restore the file from a backup, or move it away if it "
        "is the last one: the activation before it is then current"
    )


def _describe(record: ActivationRecord) -> str:
    did = {
        "activate": f"activated {record.version}",
        "candidate": f"made {record.candidate} the candidate",
        "rollback": f"rolled back to {record.version}",
    }[record.action]
    return f"{record.by} {did} at the same time" + (f" ({record.why})" if record.why else "")


def _user_of_process() -> str:
    """The user who runs this process, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
