"""The report of a replica: its state, its version and its generation. `activate --wait` reads the reports."""

from __future__ import annotations

import functools
import os
import re
import secrets
import socket
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from recollect.service.printable import printable
from recollect.service.store.activation_record import Version

_MAX_REASON_CHARACTERS = 1_000
_REPLICA_NAME = re.compile(r"[0-9A-Za-z.-]{1,160}")

State = Literal["opening", "serving", "failed", "draining"]


CanaryState = Literal["opening", "open", "failed", "stopped"]


class CanaryReport(BaseModel):
    """The state of the canary in one replica."""

    model_config = ConfigDict(frozen=True)

    version: Version
    generation: int = Field(description="generation of the activation record that started the canary")
    state: CanaryState = Field(
        description="opening; open: it answers its share of the requests; failed: the replica refused to open it; "
        "stopped: a circuit breaker stopped it"
    )
    error: str | None = Field(None, description="the reason if the canary is failed or stopped")
    stopped_by: str | None = Field(None, description="the replica whose circuit breaker stopped the canary")

    def stops(self, version: str, generation: int) -> bool:
        """Whether this report stops the canary of a generation."""
        return (self.state, self.version, self.generation) == ("stopped", version, generation)


class Refusal(BaseModel):
    """A version that a replica refused to serve, and the reason."""

    version: Version
    error: Annotated[str, AfterValidator(printable)]
    at: datetime


class Report(BaseModel):
    """The report of one replica. A replica is one process."""

    model_config = ConfigDict(frozen=True)

    replica: str = Field(description="name of the replica: host name, process id and random digits")
    state: State = Field(
        description="opening: it opens the desired version; serving: it serves the desired version; "
        "failed: it refused the desired version; draining: it stops"
    )
    version: Version | None = Field(description="the version that the replica serves; null if it opens its first one")
    generation: int | None = Field(
        None, description="generation of the activation record that the replica serves, opens or refused"
    )
    since: datetime | None = Field(description="the time since which the replica serves the version")
    refused: Refusal | None = Field(
        None, description="the current version, if the replica refused to serve it, with the reason"
    )
    canary: CanaryReport | None = Field(None, description="the canary, if there is one")


def parse_report(content: bytes, replica: str) -> Report | None:
    """The report of a replica; None if the content is not its report. The content can come from an untrusted source."""
    try:
        report = Report.model_validate_json(content)
    except ValidationError:
        return None
    return report if report.replica == replica else None


def replica_name() -> str:
    """The name of this process among the replicas of its store."""
    return _name_of(os.getpid())


def is_replica_name(name: str) -> bool:
    return _REPLICA_NAME.fullmatch(name) is not None


def shorten(reason: str) -> str:
    """Shorten a reason to a length that fits into a report."""
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[:_MAX_REASON_CHARACTERS] + "..."


@functools.cache
def _name_of(process: int) -> str:
    """Host name, process id and random digits: containers can have equal host names and process ids."""
    host = re.sub(r"[^0-9A-Za-z.-]", "-", socket.gethostname())[:128]
    return f"{host}-{process}-{secrets.token_hex(2)}"
