"""Settings of a store and of a shared Redis, and how each setting gets its environment variable, flag and help text."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from recollect.core.errors import RecollectError, SettingsError

ENV_PREFIX = "RECOLLECT_"

Device = Literal["auto", "cpu", "cuda"]

# Formats of the queries of `recollect predict --input`. `text`: each line is a text. `jsonl`: each line is an object.
InputFormat = Literal["text", "jsonl", "csv", "parquet"]

_AS_PATH = AfterValidator(lambda given: given if given is None or "://" in str(given) else Path(given))
# The folder or the URL of a store. A URL may contain a password, so error messages show the store's `name` instead of
# the URL.
Location = Annotated[Path | str, _AS_PATH, Field(repr=False)]
# The path or the URL of a file; None means standard input or output.
FileLocation = Annotated[Path | str | None, _AS_PATH, Field(repr=False)]

# The flag value that means None. No command-line argument can contain this character, so `--verify-key null` means a
# file with the name `null`.
NO_WORD = "\0"


def _split(value: object) -> object:
    """Split a comma-separated list in a flag or an environment variable: 0,.1,.5."""
    return value.split(",") if isinstance(value, str) else value


Listed = (NoDecode, BeforeValidator(_split))

# The folder in which workers share their metrics. prometheus_client reads this variable at import time.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"

# Settings of keys and certificates.
_KEYS = frozenset(
    {
        "api_keys",
        "encoder_token",
        "engine_ca",
        "engine_token",
        "reranker_token",
        "sign",
        "tls_cert",
        "tls_key",
        "verify_key",
    }
)
# Minimum time limit of the calls of other programs in a training, a build or a compaction.
_BUILD_SECONDS = 600.0
# Secrets with fewer characters can be guessed.
_MIN_SECRET_CHARACTERS = 16


def require_strong(secret: str, expected: str) -> None:
    """Refuse a secret that can be guessed or cannot be sent in a header.

    The message begins with `expected`, and does not contain the secret.
    """
    if len(secret) < _MIN_SECRET_CHARACTERS:
        raise SettingsError(
            f"{expected} {_MIN_SECRET_CHARACTERS} characters or more, found {len(secret)}; "
            "create a secret with `openssl rand -hex 24`"
        )
    if not secret.isascii():
        raise SettingsError(f"{expected} ASCII letters, digits and signs, found other characters")


def _check_engine_uri(uri: SecretStr) -> SecretStr:
    given = uri.get_secret_value()
    try:
        parts = urlsplit(given)
        is_server = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # for example, a port that is not a number
        is_server = False
    if not is_server and ("://" in given or not given.endswith(".db")):
        raise SettingsError("--engine-uri: expected http://HOST:PORT, https://HOST:PORT or a file that ends in .db")
    return uri


class EncoderAddress(NamedTuple):
    """A server of vectors with OpenAI's route `/embeddings`: its URL without this route, and the name of a model."""

    url: str
    model: str

    def __str__(self) -> str:
        return f"{self.url}#{self.model}"

    def or_model(self, model: str) -> EncoderAddress:
        """This address, with a model if it names none."""
        return self if self.model else self._replace(model=model)

    @classmethod
    def parse(cls, given: str, flag: str) -> EncoderAddress:
        """Parse `http://HOST/v1#MODEL`; the model may be absent.

        Raises:
            SettingsError: If it is no such URL, or contains a password or a query, which may be a key.
        """
        url, model = _parse_server(given, flag, "/v1", "RECOLLECT_ENCODER_TOKEN")
        return cls(url.removesuffix("/embeddings"), model)


class RerankerAddress(NamedTuple):
    """A server with a route that reranks: the URL of the route, and the name of a model; empty for TEI's route."""

    url: str
    model: str

    @classmethod
    def parse(cls, given: str) -> RerankerAddress:
        """Parse `http://HOST/rerank` or `http://HOST/rerank#MODEL`.

        Raises:
            SettingsError: If it is no such URL, or contains a password or a query, which may be a key.
        """
        return cls(*_parse_server(given, "--reranker", "/rerank", "RECOLLECT_RERANKER_TOKEN"))


def _parse_server(given: str, flag: str, route: str, token: str) -> tuple[str, str]:
    """The URL of a server and the model after `#`, which may be absent."""
    url, _, model = given.partition("#")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for example, a port that is not a number
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(
            f"{flag}: expected http://HOST:PORT{route}#MODEL or https://HOST{route}#MODEL, found no such URL"
        )
    if "@" in parts.netloc or parts.query:
        raise SettingsError(
            f"{flag}: expected a URL without a password and without a query, found one; give the token in {token}"
        )
    return url.rstrip("/"), model


def is_encoder_url(encoder: str) -> bool:
    """Whether --encoder names a server of vectors, not a model or a folder."""
    return encoder.startswith(("http://", "https://"))


def _check_encoder_url(given: str) -> str:
    EncoderAddress.parse(given, "--encoder-url")
    return given


def _check_reranker(given: str) -> str:
    RerankerAddress.parse(given)
    return given


class ReadIf(NamedTuple):
    """Flags that have an effect only under a condition. Without it, a flag that the user gives is refused.

    Attributes:
        expected: What fulfils the condition.
        found: Returns what the settings have instead; None if they fulfil the condition.
    """

    flags: tuple[str, ...]
    expected: str
    found: Callable[[Any], str | None]


class Settings(BaseSettings):
    """Base of all settings. The setting `x_y` is flag `--x-y` and environment variable `RECOLLECT_X_Y`.

    An empty variable means the default, but for a key or a certificate it is a SettingsError: without it, the service
    could be open.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        frozen=True,
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_parse_none_str=NO_WORD,
    )

    read_if: ClassVar[tuple[ReadIf, ...]] = ()
    # The fields under each heading of the help. Without headings, all flags are in one list.
    help_groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def unread_flags(self) -> Iterator[str]:
        """Yield a message for each given flag that has no effect beside the others.

        An environment variable is for several verbs, so it may have no effect.
        """
        for name in sorted(self.model_fields_set):
            message = None if f"{ENV_PREFIX}{name.rstrip('_')}".upper() in os.environ else self.unread(name)
            if message is not None:
                yield message

    def unread(self, name: str) -> str | None:
        """Say why a flag has no effect beside the others; None if it has one."""
        for rule in self.read_if:
            if name in rule.flags and (found := rule.found(self)) is not None:
                return f"{as_flag(name)}: expected {rule.expected}, found {found}; omit the flag"
        return None

    @classmethod
    def read_of(cls, given: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
        """The given flags that have an effect beside others, which override them."""
        settings = cls.model_construct(**{**given, **beside})
        return {name: value for name, value in given.items() if settings.unread(name) is None}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, EnvSettingsSource(settings_cls, env_ignore_empty=True)  # an empty flag is not ignored

    @model_validator(mode="after")
    def _refuse_empty_keys(self) -> Self:
        for name in _KEYS & type(self).model_fields.keys():
            variable = f"{ENV_PREFIX}{name.upper()}"
            if getattr(self, name) is None and os.environ.get(variable) == "":
                raise SettingsError(f"{variable}: expected a value, found an empty one; set it, or remove the variable")
        return self


def refuse_unread(settings: _Settings) -> _Settings:
    """Refuse given flags that have no effect: a validator of settings with `read_if`."""
    for message in settings.unread_flags():
        raise SettingsError(message)
    return settings


def as_flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.rstrip("_").replace("_", "-")


def as_words(values: Mapping[str, Any]) -> list[str]:
    """The values of fields as the words of a command line."""
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(as_flag(name if value else f"no_{name}"))
        elif value is None:
            words += [as_flag(name), NO_WORD]
        else:
            words += [as_flag(name), ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return words


_Settings = TypeVar("_Settings", bound=Settings)


class TableSettings(Settings):
    """The columns of a table that have its texts and labels."""

    text_columns: Annotated[list[str], *Listed] = Field(
        [], description="columns of a table that form a text: title,description"
    )
    label_column: str | None = Field(None, min_length=1, description="column of a table with the labels of each text")
    label_separator: str | None = Field(
        None, min_length=1, description="text between the labels in --label-column, such as '|'; unset: one label"
    )
    id_column: str | None = Field(
        None,
        min_length=1,
        description="column of a table with the uids of the texts; rows with the same uid are one text",
    )

    @property
    def named_columns(self) -> list[str]:
        """The columns that the flags name."""
        return [*self.text_columns, *filter(None, (self.label_column, self.id_column))]

    def example(self, flags: Mapping[str, str], command: Sequence[str]) -> str:
        """The next step for a table that is read with wrong flags: these flags, or those of them that are given.

        Args:
            command: The command that reads the table, without flags of tables; empty in Python.
        """
        values = {name: getattr(self, name) or value for name, value in flags.items()}
        if not command:
            return "add " + ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"for example `{shlex.join([*command, *as_words(values)])}`"


def fill_in(
    settings: Settings,
    declared: Mapping[str, FieldInfo],
    remembered: Mapping[str, Any],
    source: str,
    note: Callable[[str], None],
    error: type[RecollectError],
) -> dict[str, Any]:
    """The remembered values of the flags that nobody gives. A given flag with another value is reported, and stays.

    Args:
        declared: The flags and their defaults.
        remembered: The values that differ from the defaults, as JSON.
        source: Name of the run or the version that remembers them.
        note: Function that reports.
        error: Class of the error.

    Raises:
        RecollectError: If a remembered value is no value of its flag.
    """
    found = dict[str, Any]()
    for name in declared.keys() & remembered.keys():
        kind: Any = Annotated[declared[name].annotation, declared[name]]
        try:
            found[name] = TypeAdapter(kind).validate_python(remembered[name])
        except ValidationError as wrong:
            raise error(
                f"{source}: dataset.{name}: expected a value of {as_flag(name)}, found {remembered[name]!r:.60} "
                f"({wrong.errors()[0]['msg']}); train again, and build from the new run"
            ) from None
    for name in declared:
        value, given = found.get(name, declared[name].default), getattr(settings, name)
        if name in settings.model_fields_set and given != value:
            note(f"{as_flag(name)} {_shown(given)}: {source} has {_shown(value)}; the given value is used")
    return {name: value for name, value in found.items() if name not in settings.model_fields_set}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


class EngineSettings(Settings):
    """Settings of the connection to Milvus, for bundles whose keys are in Milvus."""

    engine_uri: Annotated[SecretStr, AfterValidator(_check_engine_uri)] | None = Field(
        None,
        description="Milvus server of bundles whose keys are in Milvus: http://HOST:PORT, https://HOST:PORT for TLS, "
        "each also with /DATABASE, or a file .db of milvus-lite (default: none)",
    )
    engine_token: SecretStr | None = Field(
        None, description="Token of Milvus: USER:PASSWORD or an API key (default: Milvus needs none)"
    )
    engine_ca: Path | None = Field(
        None,
        description="File with the CA certificates in PEM format that verify the server of --engine-uri (default: "
        "those of gRPC)",
    )
    engine_seconds: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Maximum seconds for one call of Milvus; a query that needs longer gets status 503",
    )


class EncoderServerSettings(Settings):
    """Settings of the connection to a server of vectors, for runs and bundles that have no encoder of their own."""

    encoder_url: Annotated[str, AfterValidator(_check_encoder_url)] | None = Field(
        None,
        description="Server of the vectors of versions that were trained with --encoder URL: http://HOST:PORT/v1 or "
        "https://HOST/v1, followed by #MODEL if the model has another name there (default: none)",
    )
    encoder_token: SecretStr | None = Field(
        None, description="Token of the server of vectors, sent as Authorization: Bearer (default: it needs none)"
    )
    encoder_seconds: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Maximum seconds for one batch of the server of vectors, with repeated calls; a query that needs "
        "longer gets status 503",
    )


class RerankerSettings(Settings):
    """Settings of the connection to a reranker on a server, for runs and bundles whose ranker reads its scores."""

    reranker: Annotated[str, AfterValidator(_check_reranker)] | None = Field(
        None,
        description="Reranker of versions that were ranked with --reranker URL: http://HOST/rerank with the shape of "
        "TEI (query, texts), or followed by #MODEL with the shape of Infinity, vLLM and Jina (query, documents) "
        "(default: none; such a version then answers without it)",
    )
    reranker_token: SecretStr | None = Field(
        None, description="Token of the reranker, sent as Authorization: Bearer (default: it needs none)"
    )
    reranker_ms: int = Field(
        500,
        ge=1,
        le=600_000,
        description="Maximum milliseconds for the scores of one query; a query that needs longer is answered without "
        "them",
    )


class ConnectionSettings(EngineSettings, EncoderServerSettings, RerankerSettings):
    """Settings of the connections to other programs that a version may need: Milvus, servers of vectors and scores."""

    @classmethod
    def of_environment(cls) -> Self:
        """The settings of the environment variables.

        Raises:
            SettingsError: If a variable has a wrong value. The message does not contain the value.
        """
        try:
            return cls()
        except ValidationError as error:
            problem = error.errors()[0]
            name = f"{ENV_PREFIX}{problem['loc'][0]}".upper()
            raise SettingsError(f"{name}: {problem['msg']}") from None

    def patient(self) -> Self:
        """The same connections with a time limit for builds, whose calls take longer than those of a query."""
        seconds = {name: max(getattr(self, name), _BUILD_SECONDS) for name in ("engine_seconds", "encoder_seconds")}
        return self.model_copy(update=seconds)


class ServiceSettings(Settings):
    """Settings of a bundle store."""

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


# The use of the live entries of a store by a program that does not write them.
LiveEntries = Literal["off", "read"]
LIVE_HELP = (
    "Live entries of the store: read, or off for the memory of the bundle alone (default: read; with --verify-key off, "
    "because no signature covers live entries)"
)


def default_live(verify_key: Path | None) -> LiveEntries:
    """The use of live entries that nobody chose: a program that asks for signatures uses nothing unsigned."""
    return "read" if verify_key is None else "off"


class RedisSettings(ServiceSettings):
    """Settings of a bundle store, and of the Redis server that its replicas share."""

    redis_url: SecretStr | None = Field(
        None,
        description="URL of a Redis server (redis://..., or rediss://... for TLS) in which replicas share their "
        "reports, cached answers and rate limits (default: replicas share nothing)",
    )
    redis_prefix: str = Field("recollect", min_length=1, max_length=64, description="Prefix of all keys in Redis")


def secrets_in_command_line(settings: Settings, arguments: Sequence[str]) -> list[str]:
    """The flags of a command line whose values contain a token, or a URL with a password."""
    given = {argument.partition("=")[0] for argument in arguments}
    secret_flags = []
    for name in type(settings).model_fields:
        flag, value = as_flag(name), getattr(settings, name)
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        has_password = "://" in text and "@" in text
        if flag in given and (has_password or name in ("encoder_token", "engine_token", "reranker_token")):
            secret_flags.append(flag)
    return secret_flags


def unknown_variables(settings: ServiceSettings) -> list[str]:
    """Environment variables that begin with `RECOLLECT_` but match no setting, probably because they are misspelled."""
    known = {f"{ENV_PREFIX}{name.rstrip('_')}".upper() for name in type(settings).model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
