"""Settings of the service: environment variable, flag, default and help text of each setting."""

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
Access = Literal["public", "key", "off"]

# The folder or the URL of a store. A URL may contain a password, so error messages show the store's `name` instead of
# the URL.
Location = Annotated[
    Path | str, AfterValidator(lambda given: given if "://" in str(given) else Path(given)), Field(repr=False)
]

# The flag value that means None. No command-line argument can contain this character, so `--verify-key null` means a
# file with the name `null`.
NO_WORD = "\0"

_ORIGIN = re.compile(r"\*|https?://[^/?#@\s]+")

# The folder in which workers share their metrics. prometheus_client reads this variable at import time.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"

# Largest value of --max-batch.
MAX_BATCH = 4096

# Secrets with fewer characters can be guessed.
_MIN_SECRET_CHARACTERS = 16


def require_strong(secret: str, expected: str) -> None:
    """Refuse a secret that can be guessed or cannot be sent in a header.

    Args:
        secret: The secret. No error message contains the secret.
        expected: The beginning of the error message.

    Raises:
        SettingsError: If the secret is too short or not ASCII.
    """
    if len(secret) < _MIN_SECRET_CHARACTERS:
        raise SettingsError(
            f"{expected} {_MIN_SECRET_CHARACTERS} characters or more, found {len(secret)}; "
            "create a secret with `openssl rand -hex 24`"
        )
    if not secret.isascii():
        raise SettingsError(f"{expected} ASCII letters, digits and signs, found other characters")


def _require_strong_redis_secret(secret: SecretStr) -> SecretStr:
    require_strong(secret.get_secret_value(), "--redis-secret: expected")
    return secret


class ServiceSettings(BaseSettings):
    """Settings of a bundle store. The setting `x_y` is flag `--x-y` and environment variable `RECOLLECT_X_Y`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        frozen=True,
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_parse_none_str=NO_WORD,
    )

    store: Location = Field(description="Bundle store: a folder, or a URL such as s3://bucket/store")
    bundle_cache: Path | None = Field(
        None,
        description="Folder for bundles downloaded from a store at a URL, and with --verify-key for the private copies "
        "of bundles; only this user may write to it (default: ~/.cache/recollect)",
    )
    verify_key: Path | None = Field(
        None,
        description="File with one or several Ed25519 public keys in PEM format; only bundles signed by one of their "
        "private keys are opened (default: bundles need no signature)",
    )


class RedisSettings(ServiceSettings):
    """Settings of a bundle store, and of the Redis server that its replicas share."""

    redis_url: SecretStr | None = Field(
        None,
        description="URL of a Redis server (redis://..., or rediss://... for TLS) in which replicas share "
        "announcements of versions, their reports, cached answers and rate limits (default: replicas share nothing)",
    )
    redis_prefix: str = Field("recollect", min_length=1, max_length=64, description="Prefix of all keys in Redis")
    redis_secret: Annotated[SecretStr, AfterValidator(_require_strong_redis_secret)] | None = Field(
        None,
        description="Secret of all replicas that Redis does not hold, at least 16 characters; authenticates the "
        "content in Redis (default: replicas do not share cached answers through Redis)",
    )


class ServeSettings(RedisSettings):
    """Answer queries over HTTP with the current version of the store."""

    verify_activations: CliImplicitFlag[bool] = Field(
        False,
        description="Follow only activations that are signed by one of the private keys of --verify-key, and never an "
        "older activation than one seen before",
    )
    host: str = Field("127.0.0.1", description="Address to listen on (0.0.0.0 for all interfaces)")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on (0 for any free port)")
    tls_cert: Path | None = Field(
        None,
        description="File with the TLS certificate and its chain in PEM format; needs --tls-key, and is loaded again "
        "when it changes (default: no TLS)",
    )
    tls_key: Path | None = Field(
        None, description="File with the private key of --tls-cert in PEM format, without a password"
    )
    workers: int = Field(1, ge=1, le=256, description="Number of worker processes; a worker that dies is restarted")
    threads: int = Field(
        0,
        ge=0,
        description="Number of threads of each worker; "
        "each thread computes one batch of queries at a time (0 for the number of cores divided by --workers)",
    )
    device: Device = Field(
        "cpu",
        description="Device for encoding and searching: cpu; "
        "cuda (everything that cannot run on the GPU runs on the CPU); or auto (cuda if there is a GPU, otherwise cpu)",
    )
    poll_seconds: float = Field(
        0.5, gt=0, le=3600, description="Seconds between two checks whether the store has a new current version"
    )
    drain_seconds: float = Field(
        20.0, ge=0, le=3600, description="Maximum seconds to finish the requests in progress at shutdown"
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="Maximum number of open connections of each worker; further connections get status 503, except for "
        "the paths /health and /metrics",
    )
    max_body_bytes: int = Field(1 << 20, ge=1024, description="Maximum size of a request body in bytes")
    max_query_bytes: int = Field(
        8192, ge=64, description="Maximum size of a query in bytes (UTF-8); a longer query gets status 413"
    )
    max_batch: int = Field(64, ge=1, le=MAX_BATCH, description="Maximum number of queries in one request")
    max_queue: int = Field(
        256,
        ge=1,
        description="Maximum number of queries that wait for a thread, where an expensive query counts as several; "
        "requests beyond this limit get status 503 at once",
    )
    max_seconds: float = Field(
        30.0,
        gt=0,
        le=600,
        description="Maximum seconds for the answer to a request, also if the request asks for a later deadline; "
        "a request that takes longer gets status 504",
    )
    hang_seconds: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds after which one block of a batch counts as hung: the process reports that it is not "
        "ready, and is replaced 30 seconds later; more than --max-seconds",
    )
    encode_together: int = Field(
        32,
        ge=1,
        le=4096,
        description="Maximum number of queries that are encoded together, from one or several requests",
    )
    cache_mb: int = Field(64, ge=0, description="Size of the answer cache of each worker in megabytes (0 disables it)")
    cache_seconds: int = Field(600, ge=1, description="Seconds until a cached answer expires")
    api_keys: Path | None = Field(
        None,
        description="File of API keys, one key a line: NAME KEY [QUERIES_PER_SECOND]; read again on changes (default: "
        "requests need no API key)",
    )
    rate_limit: float = Field(
        0.0,
        ge=0,
        description="Maximum queries a second of an API key for which the file of API keys sets no limit, where an "
        "expensive query counts as several; "
        "all replicas together enforce it with --redis-url, otherwise each replica enforces it alone (0 for no limit)",
    )
    cors_origins: str = Field(
        "", description="Web origins whose pages may send requests, such as https://a.example,https://b.example"
    )
    admin_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the admin interface (default: no admin interface)"
    )
    admin_host: str = Field(
        "127.0.0.1", description="Address of the admin interface; an address other than loopback needs --admin-token"
    )
    admin_token: SecretStr | None = Field(None, description="Token for the admin interface; at least 16 characters")
    admin_token_file: Path | None = Field(
        None, description="File with the token for the admin interface, instead of --admin-token; read again on changes"
    )
    docs: Access = Field(
        "public", description="Access to /docs, /redoc and /openapi.json: public, key (only with an API key) or off"
    )
    metrics: Access = Field("public", description="Access to /metrics: public, key (only with an API key) or off")
    log_queries: float = Field(0.0, ge=0, le=1, description="Fraction of queries to log, with their answers")
    access_log: CliImplicitFlag[bool] = Field(False, description="Log every request")

    @property
    def origins(self) -> list[str]:
        """The web origins whose pages may send requests."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]


class PredictSettings(ServiceSettings):
    """Answer one query without a server."""

    text: CliPositionalArg[str] = Field(description="Text of the query")
    version: str = Field("current", description="Version to use")
    lambda_: Lambda | None = Field(
        None,
        validation_alias="lambda",
        description="Weight of instances against labels, from 0 to 1 (default: from the bundle)",
    )
    temperature: Temperature | None = Field(
        None, description="Temperature of the softmax over the retrieved keys (default: from the bundle)"
    )
    top_b: TopB | None = Field(None, description="Number of keys to retrieve (default: from the bundle)")
    top_k: TopK | None = Field(None, description="Maximum number of labels to return (default: from the bundle)")
    explain: CliImplicitFlag[bool] = Field(False, description="Show the terms of each score")
    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class VersionsSettings(ServiceSettings):
    """List the versions in a store, oldest first."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class LogSettings(ServiceSettings):
    """List all activations and rollbacks of a store, the newest last: time in UTC, generation, versions and user."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class SwitchSettings(RedisSettings):
    """Settings of the commands that change the current version of a store."""

    sign: Path | None = Field(
        None,
        description="File with an Ed25519 private key in PEM format, without a passphrase; signs the activation "
        "(default: no signature)",
    )
    wait: CliImplicitFlag[bool] = Field(
        False, description="Wait until every replica serves the version; if a replica does not, fail and print its name"
    )
    wait_seconds: float = Field(
        60.0, gt=0, le=86_400, description="Maximum seconds to wait for the replicas (with --wait)"
    )
    replicas: int | None = Field(
        None,
        ge=1,
        description="Number of replicas that must serve the version (with --wait); every worker process is a replica "
        "(default: all replicas that reported in the last minute)",
    )
    by: str | None = Field(
        None, min_length=1, max_length=200, description="User, for the log (default: user and host name)"
    )
    why: str = Field("", max_length=1000, description="Reason, for the log")


class ActivateSettings(SwitchSettings):
    """Make a version current."""

    version: CliPositionalArg[str] = Field(description="Version from `recollect versions`")


class RollbackSettings(SwitchSettings):
    """Make the version current that was current before."""


class VerifySettings(ServiceSettings):
    """Check a version: signature, manifest, SHA-256 of every file, and answers to its golden queries."""

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )


class PruneSettings(RedisSettings):
    """Remove old versions from a store.

    The current version, the target of a rollback, protected versions, and versions that a replica serves or opens are
    kept. With --redis-url, the replicas' reports are read from Redis, otherwise from the store's folder.
    """

    keep: int = Field(ge=1, description="Number of the newest versions to keep in any case")
    dry_run: CliImplicitFlag[bool] = Field(False, description="Print the versions to remove, but remove nothing")


class ProtectSettings(ServiceSettings):
    """Protect a version: `recollect prune` keeps it."""

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )


class UnprotectSettings(ServiceSettings):
    """Remove the protection of a version."""

    version: CliPositionalArg[str] = Field(description="A protected version")


class CopySettings(ServiceSettings):
    """Copy a version to another store, and verify every file on the way. The copy does not become current.

    A copy that was interrupted can be started again. A version that the other store contains is never overwritten.
    """

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )
    to: Location = Field(description="Store that receives the version: a folder, or a URL such as s3://bucket/store")


def require_consistent(settings: ServeSettings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        SettingsError: With the names of the settings, without secrets.
    """
    token, port = settings.admin_token, settings.admin_port
    has_token = token is not None or settings.admin_token_file is not None
    if token is not None:
        require_strong(token.get_secret_value(), "--admin-token: expected")
    if token is not None and settings.admin_token_file is not None:
        raise SettingsError("--admin-token: expected only one of --admin-token and --admin-token-file, found both")
    if has_token and port is None:
        raise SettingsError("--admin-token: needs --admin-port, which is not set")
    if not has_token and port is not None and not is_loopback(settings.admin_host):
        raise SettingsError(
            f"--admin-host {settings.admin_host}: needs --admin-token, which is not set, because other machines can "
            "reach this address"
        )
    for flag, access in (("--docs", settings.docs), ("--metrics", settings.metrics)):
        if access == "key" and settings.api_keys is None:
            raise SettingsError(f"{flag} key: needs --api-keys, which is not set")
    if settings.verify_activations and settings.verify_key is None:
        raise SettingsError("--verify-activations: needs --verify-key, which is not set")
    if settings.redis_secret is not None and settings.redis_url is None:
        raise SettingsError("--redis-secret: needs --redis-url, which is not set")
    if port and port == settings.port:
        raise SettingsError(f"--admin-port must differ from --port (both are {port})")
    if settings.hang_seconds <= settings.max_seconds:
        raise SettingsError(
            f"--hang-seconds: must be greater than --max-seconds ({settings.max_seconds:g}), because a request may "
            f"wait so long for one block of its batch; found {settings.hang_seconds:g}"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if settings.tls_cert else ("--tls-key", "--tls-cert")
        raise SettingsError(f"{given}: needs {missing}, which is not set")
    for origin in settings.origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(f"--cors-origins: expected origins such as https://shop.example, found {origin!r}")
    if settings.rate_limit and settings.api_keys is None:
        raise SettingsError(
            "--rate-limit: needs --api-keys, which is not set, because the limit applies to each API key"
        )


def unknown_variables(settings: ServiceSettings) -> list[str]:
    """Environment variables that begin with `RECOLLECT_` but match no setting, probably because they are misspelled."""
    known = {f"{ENV_PREFIX}{name.rstrip('_')}".upper() for name in type(settings).model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
