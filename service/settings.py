"""Settings of `recollect serve`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import CliImplicitFlag

from recollect.core.errors import SettingsError
from recollect.core.settings import LIVE_HELP, ConnectionSettings, Device, LiveEntries, RedisSettings, default_live
from recollect.service.addresses import is_loopback

Access = Literal["public", "key", "off"]

# Largest value of --max-batch.
MAX_BATCH = 4096

_ORIGIN = re.compile(r"\*|https?://[^/?#@\s]+")


class ServeSettings(RedisSettings, ConnectionSettings):
    """Answer queries over HTTP with the current version of the store."""

    host: Annotated[str, AfterValidator(lambda host: host.strip("[]"))] = Field(
        "127.0.0.1", description="Address to listen on (0.0.0.0 for all interfaces, :: for all with IPv6)"
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on (0 for any free port)")
    tls_cert: Path | None = Field(
        None, description="File with the TLS certificate and its chain in PEM format; needs --tls-key (default: no TLS)"
    )
    tls_key: Path | None = Field(
        None, description="File with the private key of --tls-cert in PEM format, without a password"
    )
    workers: int = Field(1, ge=1, le=256, description="Number of worker processes; a worker that dies is replaced")
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
    keep_alive_seconds: int = Field(
        75,
        ge=1,
        le=3600,
        description="Seconds until an idle connection is closed; longer than the proxy or balancer keeps it, which "
        "otherwise sends a request on a closed connection",
    )
    drain_seconds: float = Field(
        20.0, ge=0, le=3600, description="Maximum seconds to finish the requests in progress at shutdown"
    )
    max_body_bytes: int = Field(1 << 20, ge=1024, description="Maximum size of a request body in bytes")
    max_query_bytes: int = Field(
        1 << 16, ge=64, description="Maximum size of a query in bytes (UTF-8); a longer query gets status 413"
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
    redis_ms: int = Field(
        50,
        ge=1,
        le=5_000,
        description="Maximum milliseconds that a request waits for an answer of Redis; then it goes on without Redis",
    )
    cache_mb: int = Field(64, ge=0, description="Size of the answer cache of each worker in megabytes (0 disables it)")
    cache_seconds: int = Field(600, ge=1, description="Seconds until a cached answer expires")
    api_keys: Path | None = Field(
        None,
        description="File of API keys, one key a line: NAME KEY [QUERIES_PER_SECOND] [write] [operate]; read again on "
        "changes (default: requests need no API key)",
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
    allowed_hosts: str = Field(
        "",
        description="Host names in the URLs of clients, such as search.example,localhost; requests with other names "
        "get status 421, and * allows all names (default: localhost if --host is a loopback address and there are no "
        "--api-keys, otherwise all)",
    )
    docs: Access = Field(
        "public", description="Access to /docs, /redoc and /openapi.json: public, key (only with an API key) or off"
    )
    playground: CliImplicitFlag[bool] = Field(
        True, description="Serve the playground, a web page to try queries and options, at /"
    )
    writable: CliImplicitFlag[bool] = Field(
        False, description="Let API keys with the scope write change the memory; needs --api-keys"
    )
    live: LiveEntries | None = Field(None, description=f"{LIVE_HELP}; --writable reads them")
    delta_keys: int = Field(
        50_000, ge=1, description="Maximum number of live keys; further changes that add keys get status 507"
    )
    delta_mb: int = Field(
        256,
        ge=1,
        description="Maximum memory of the live entries in megabytes, in each worker, for each open version; further "
        "changes that add keys get status 507",
    )
    annif: CliImplicitFlag[bool] = Field(
        False, description="Answer Annif's REST API, at /v1/projects/recollect; with --writable, also /learn"
    )
    metrics: Access = Field("public", description="Access to /metrics: public, key (only with an API key) or off")
    log_queries: float = Field(0.0, ge=0, le=1, description="Fraction of queries to log, with their answers")
    assign_threshold: float = Field(
        0.0,
        ge=0,
        le=1,
        description='Minimum probability of a label in the answer to a request with "assign": true and without '
        "min_probability",
    )
    access_log: CliImplicitFlag[bool] = Field(False, description="Log every request")

    @property
    def reads_live_entries(self) -> bool:
        """Whether the answers use the live entries of the store."""
        return self.writable or (self.live or default_live(self.verify_key)) == "read"

    @property
    def host_names(self) -> frozenset[str] | None:
        """The host names that requests may name, in lower case; None for all.

        The default protects a service that trusts all programs of its machine: a page of another site can make a
        browser of this machine ask the service under the name of that site (DNS rebinding).
        """
        given = frozenset(name.strip().strip("[]").lower() for name in self.allowed_hosts.split(",") if name.strip())
        if given:
            return None if "*" in given else given
        if self.api_keys is None and is_loopback(self.host):
            return frozenset({"localhost", "127.0.0.1", "::1", self.host.lower()})
        return None

    @property
    def origins(self) -> list[str]:
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]


def require_consistent(settings: ServeSettings) -> None:
    """Raise `SettingsError` if settings contradict each other. The message contains no secrets."""
    for flag, access in (("--docs", settings.docs), ("--metrics", settings.metrics)):
        if access == "key" and settings.api_keys is None:
            raise SettingsError(f"{flag} key: needs --api-keys, which is not set")
    if settings.writable and settings.api_keys is None:
        raise SettingsError(
            "--writable: needs --api-keys, which is not set, because a change needs a key with `write`; write a file "
            "with the line `NAME KEY write`, with a KEY from `openssl rand -hex 24`, and name the file with --api-keys"
        )
    if settings.writable and settings.live == "off":
        raise SettingsError("--live off: expected --live read with --writable, because a change is a live entry")
    if settings.hang_seconds <= settings.max_seconds:
        raise SettingsError(
            f"--hang-seconds: must be greater than --max-seconds ({settings.max_seconds:g}), because a request may "
            f"wait so long for one block of its batch; found {settings.hang_seconds:g}"
        )
    if settings.engine_uri is not None and settings.hang_seconds <= 4 * settings.engine_seconds:
        raise SettingsError(
            f"--hang-seconds: must be greater than four times --engine-seconds ({settings.engine_seconds:g}), because "
            f"a block of a batch may wait for several calls of Milvus; found {settings.hang_seconds:g}"
        )
    if settings.encoder_url is not None and settings.hang_seconds <= settings.encoder_seconds:
        raise SettingsError(
            f"--hang-seconds: must be greater than --encoder-seconds ({settings.encoder_seconds:g}), because a block "
            f"of a batch may wait so long for the server of vectors; found {settings.hang_seconds:g}"
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
