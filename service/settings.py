"""What the service can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, SettingsConfigDict

from service.schemas import Lambda, Temperature, TopB, TopK

ENV_PREFIX = "RECOLLECT_"

Device = Literal["auto", "cpu", "cuda"]

# A store's folder, or its URL, which may hold a password: show a store's `name` instead.
Location = Annotated[
    Path | str, AfterValidator(lambda given: given if "://" in str(given) else Path(given)), Field(repr=False)
]

# What a flag would have to say to mean None. No argument can hold it: `--verify-key null` must not mean no key.
NO_WORD = "\0"


class ServiceSettings(BaseSettings):
    """Every setting `x_y` is also the environment variable `RECOLLECT_X_Y` and the flag `--x-y`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        frozen=True,
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_parse_none_str=NO_WORD,
    )

    store: Location = Field(description="bundle store: a folder, or a URL as in s3://bucket/store")
    bundle_cache: Path | None = Field(
        None, description="where bundles of a store at a URL are kept; unset: ~/.cache/recollect"
    )
    verify_key: Path | None = Field(
        None, description="Ed25519 public key, in PEM, that bundles must be signed for; unset: none need be signed"
    )


class ServeSettings(ServiceSettings):
    """Answer queries over HTTP, following the store's current version."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    threads: int = Field(
        0, ge=0, description="queries, or batches of them, at work at once, each on one thread; 0: one a core"
    )
    device: Device = Field(
        "cpu", description="where to encode and search: cpu, cuda, and on the CPU what cannot go there, or auto"
    )
    poll_seconds: float = Field(1.0, gt=0, le=3600, description="seconds between two looks at the store")
    max_body_bytes: int = Field(1 << 20, ge=1024, description="largest request body")
    max_queue: int = Field(
        256, ge=1, description="most queries that may wait; a request beyond is answered 503 at once"
    )
    batch_window_ms: float = Field(
        0.0, ge=0, le=1000, description="how long to wait for more queries to encode together; 0: not at all"
    )
    max_batch: int = Field(64, ge=1, le=4096, description="most queries in one batch")


class PredictSettings(ServiceSettings):
    """Answer one query, without a server."""

    text: CliPositionalArg[str] = Field(description="the query")
    version: str = Field("current", description="version to ask")
    lambda_: Lambda | None = Field(
        None, validation_alias="lambda", description="weight of instances against labels; unset: the bundle's own"
    )
    temperature: Temperature | None = Field(None, description="tau; unset: the bundle's own")
    top_b: TopB | None = Field(None, description="keys to retrieve; unset: the bundle's own number")
    top_k: TopK | None = Field(None, description="labels to answer with; unset: the bundle's own number")
    explain: CliImplicitFlag[bool] = Field(False, description="show the terms of each score")
    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="print JSON for machines")


class VersionsSettings(ServiceSettings):
    """List a store's bundles, the latest last."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="print JSON for machines")


class ActivateSettings(ServiceSettings):
    """Make a version current."""

    version: CliPositionalArg[str] = Field(description="version, as `recollect versions` lists it")


class RollbackSettings(ServiceSettings):
    """Return to the version that was current before."""


class VerifySettings(ServiceSettings):
    """Check a version: its signature, its manifest, every file's SHA-256, and what it answers its golden queries."""

    version: CliPositionalArg[str] = Field(description="version, as `recollect versions` lists it, or current")


def threads_or_cores(threads: int) -> int:
    """Threads asked for, or the cores that this process may use."""
    return threads or len(os.sched_getaffinity(0))


def unknown_variables(settings: ServiceSettings) -> list[str]:
    """Environment variables with our prefix that name no setting: misspelled, most likely."""
    known = {f"{ENV_PREFIX}{name.rstrip('_')}".upper() for name in type(settings).model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
