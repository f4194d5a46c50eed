"""What the service can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, SettingsConfigDict

from service.addresses import is_loopback
from service.errors import SettingsError
from service.options import Lambda, Temperature, TopB, TopK

ENV_PREFIX = "RECOLLECT_"

Device = Literal["auto", "cpu", "cuda"]

# A store's folder, or its URL, which may hold a password: show a store's `name` instead.
Location = Annotated[
    Path | str, AfterValidator(lambda given: given if "://" in str(given) else Path(given)), Field(repr=False)
]

# What a flag would have to say to mean None. No argument can hold it: `--verify-key null` must not mean no key.
NO_WORD = "\0"

_ORIGIN = re.compile(r"\*|https?://[^/?#@\s]+")

# Where workers share their metrics: the metrics' library reads this variable when it is loaded.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"

# A secret that can be guessed is none.
_SHORTEST_SECRET = 16


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


class RedisSettings(ServiceSettings):
    """A store, and the Redis that its replicas share."""

    redis_url: SecretStr | None = Field(
        None, description="redis://... that replicas share: the current version, who serves it, answers, rates"
    )
    redis_prefix: str = Field("recollect", min_length=1, max_length=64, description="what its keys begin with")


class ServeSettings(RedisSettings):
    """Answer queries over HTTP, following the store's current version."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    workers: int = Field(1, ge=1, le=256, description="processes that serve; one that dies is started again")
    threads: int = Field(
        0, ge=0, description="batches of queries at work at once in each worker, each on one thread; 0: cores / workers"
    )
    device: Device = Field(
        "cpu", description="where to encode and search: cpu, cuda, and on the CPU what cannot go there, or auto"
    )
    poll_seconds: float = Field(1.0, gt=0, le=3600, description="seconds between two looks at the current version")
    drain_seconds: float = Field(20.0, ge=0, le=3600, description="how long a stop may take to answer what was asked")
    max_body_bytes: int = Field(1 << 20, ge=1024, description="largest request body")
    max_batch: int = Field(64, ge=1, le=4096, description="most queries in one request")
    max_queue: int = Field(
        256, ge=1, description="most queries that may wait; a request beyond is answered 503 at once"
    )
    encode_together: int = Field(32, ge=1, le=4096, description="most queries encoded together; 1: each alone")
    cache_mb: int = Field(64, ge=0, description="megabytes of answers that each worker keeps; 0: no answer is kept")
    cache_seconds: int = Field(600, ge=1, description="how long an answer is kept")
    api_keys: Path | None = Field(
        None, description="file of keys, a line each: NAME KEY [QUERIES_PER_SECOND]; unset: anyone may ask"
    )
    rate_limit: float = Field(
        0.0,
        ge=0,
        description="queries a second of each key that its line gives no limit, over all replicas where they share a "
        "Redis, else for each; 0: no limit",
    )
    cors_origins: str = Field("", description="web origins whose pages may ask, as https://a.example,https://b.example")
    admin_port: int | None = Field(None, ge=0, le=65535, description="port of /admin; unset: there is none")
    admin_host: str = Field("127.0.0.1", description="address of /admin; any but a loopback one needs a token")
    admin_token: SecretStr | None = Field(None, description="what /admin is asked with, 16 characters or more")
    log_queries: float = Field(0.0, ge=0, le=1, description="share of queries that are logged, with their answers")
    access_log: CliImplicitFlag[bool] = Field(False, description="log every request")

    @property
    def origins(self) -> list[str]:
        """The web origins that may ask."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]


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


class SwitchSettings(RedisSettings):
    """What changes the current version."""

    wait: CliImplicitFlag[bool] = Field(False, description="return when every replica serves it, or say which does not")
    wait_seconds: float = Field(60.0, gt=0, le=86_400, description="how long to wait for them")


class ActivateSettings(SwitchSettings):
    """Make a version current."""

    version: CliPositionalArg[str] = Field(description="version, as `recollect versions` lists it")


class RollbackSettings(SwitchSettings):
    """Return to the version that was current before."""


class VerifySettings(ServiceSettings):
    """Check a version: its signature, its manifest, every file's SHA-256, and what it answers its golden queries."""

    version: CliPositionalArg[str] = Field(description="version, as `recollect versions` lists it, or current")


def require_consistent(settings: ServeSettings) -> None:
    """Refuse settings that would not do what they seem to say.

    Raises:
        SettingsError: Naming them, but no secret.
    """
    token, port = settings.admin_token, settings.admin_port
    if token is not None:
        require_strong(token.get_secret_value(), "--admin-token: expected")
    if token is not None and port is None:
        raise SettingsError("--admin-token: expected an --admin-port that it guards, found none")
    if token is None and port is not None and not is_loopback(settings.admin_host):
        raise SettingsError(
            f"--admin-host {settings.admin_host}: expected an --admin-token where others can reach it, found none"
        )
    if port and port == settings.port:
        raise SettingsError(f"--admin-port {port}: expected another than --port, found the same")
    for origin in settings.origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(f"--cors-origins: expected origins as https://shop.example, found {origin!r}")
    if settings.rate_limit and settings.api_keys is None:
        raise SettingsError("--rate-limit: expected --api-keys, whose queries it counts, found none")


def require_strong(secret: str, expected: str) -> None:
    """Refuse a secret that can be guessed, or that no header can hold.

    Args:
        secret: Which no message repeats.
        expected: How the message begins.

    Raises:
        SettingsError: If it is too short, or not of ASCII.
    """
    if len(secret) < _SHORTEST_SECRET:
        raise SettingsError(
            f"{expected} {_SHORTEST_SECRET} characters or more, found {len(secret)}; `openssl rand -hex 24` makes one"
        )
    if not secret.isascii():
        raise SettingsError(f"{expected} letters, digits and signs of ASCII, found others")


def unknown_variables(settings: ServiceSettings) -> list[str]:
    """Environment variables with our prefix that name no setting: misspelled, most likely."""
    known = {f"{ENV_PREFIX}{name.rstrip('_')}".upper() for name in type(settings).model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
