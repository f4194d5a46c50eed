"""Addresses of runs on the hub: `hf://user/name`, or `hf://user/name@revision`. Also the errors of the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recollect.index_builder.errors import BuildError

SCHEME = "hf:"


@dataclass(frozen=True)
class HubAddress:
    """A repository of the hub, and a revision of it.

    Attributes:
        repository: User or organisation, and name.
        revision: Branch, tag or commit.
    """

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"hf://{self.repository}@{self.revision}"


def is_on_hub(run: Path) -> bool:
    return run.parts[:1] == (SCHEME,)


def read_address(run: Path) -> HubAddress:
    """The address of a run on the hub. A `Path` has one slash after `hf:`.

    Raises:
        BuildError: If the address is wrong.
    """
    repository, at, revision = "/".join(run.parts[1:]).partition("@")
    check_repository(repository, f"hf://{repository}{at}{revision}", "hf://user/name or hf://user/name@revision")
    if at and not revision:
        raise BuildError(f"hf://{repository}@: expected a revision after @, found none")
    return HubAddress(repository, revision or "main")


def check_repository(repository: str, where: str, expected: str = "user/name") -> None:
    """Check the form of a repository's name.

    Args:
        repository: The name.
        where: First words of the error message.
        expected: The expected form, for the error message.

    Raises:
        BuildError: If the form is wrong.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        if repository.count("/") != 1:
            raise HFValidationError
        validate_repo_id(repository)
    except HFValidationError:
        raise BuildError(f"{where}: expected {expected} with letters, digits and . _ -") from None


@contextlib.contextmanager
def explain_hub_errors(where: str) -> Iterator[None]:
    """Turn errors of the hub and of the network into a `BuildError` of one line. No message contains the token.

    Args:
        where: First words of the message.
    """
    from huggingface_hub import constants, errors, get_token

    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):  # an error of the HTTP library would contain it
        raise BuildError(f"{where}: HF_TOKEN: expected printable ASCII characters, found others; copy the token again")
    try:
        yield
    except errors.LocalEntryNotFoundError:
        raise BuildError(
            f"{where}: expected an answer of {constants.ENDPOINT}, found none, and no copy in the local cache; "
            "check the network and HF_ENDPOINT, or unset HF_HUB_OFFLINE"
        ) from None
    except errors.RevisionNotFoundError:
        raise BuildError(f"{where}: the repository exists, but has no such revision") from None
    except errors.GatedRepoError:
        raise BuildError(f"{where}: the repository is gated; ask its owner for access, and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise BuildError(
            f"{where}: the hub has no such repository, or HF_TOKEN may not use it; check the name, and set HF_TOKEN to "
            "a token with access"
        ) from None
    except errors.EntryNotFoundError as error:
        raise BuildError(
            f"{where}: expected a run that `recollect push` uploaded, found: {_first_line(error)}"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = "set HF_TOKEN to a token that may write there" if status in (401, 403) else "try again later"
        raise BuildError(f"{where}: the hub answered {status} ({_first_line(error)}); {advice}") from None
    except errors.OfflineModeIsEnabled:
        raise BuildError(f"{where}: needs the network; unset HF_HUB_OFFLINE") from None
    except _network_errors() as error:
        raise BuildError(
            f"{where}: expected an answer of {constants.ENDPOINT}, found: {_first_line(error)}; "
            "check the network and HF_ENDPOINT"
        ) from None


def _network_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import FileMetadataError
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    # The HTTP library of the hub's client differs between its versions.
    module = __import__(type(get_session()).__module__.split(".")[0])
    return FileMetadataError, module.HTTPError, ConnectionError


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
