"""Access to the admin interface.

If the admin interface listens on an address other than loopback, it requires a token. On a loopback address it requires
no token. Without a token it accepts only requests with a loopback host name and a JSON body, so that a web page in a
browser on the same machine cannot use it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from recollect.service.addresses import is_loopback
from recollect.service.errors import SettingsError
from recollect.service.http.middleware import bearer_token
from recollect.service.http.problems import NOT_JSON, problem_response
from recollect.service.settings import require_strong


class AdminGuard:
    """Answers 401 to a request without the right token.

    If no token is set, answers 403 to a request that a web page could send.

    Args:
        app: The next application.
        token: Returns the present token; None if no token is set.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], SecretStr | None]) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if (token := self._token()) is not None:
            if hmac.compare_digest((bearer_token(headers) or "").encode(), token.get_secret_value().encode()):
                return None
            return problem_response(401, "expected `Authorization: Bearer TOKEN` with the admin token, found none")
        if not is_loopback(_host_name(headers.get("host", ""))):
            return problem_response(
                403, "without a token, the host of /admin must be localhost; set --admin-token to use another name"
            )
        media_type = headers.get("content-type", "").partition(";")[0].strip()
        if scope["method"] not in ("GET", "HEAD") and media_type != "application/json":
            return problem_response(422, NOT_JSON)
        return None


def read_admin_token(path: Path) -> SecretStr:
    """Read the admin token from a file; white space around the token is ignored.

    Raises:
        SettingsError: If the file cannot be read or contains no strong token. The message does not repeat the token.
    """
    where = f"--admin-token-file {path}: expected"
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SettingsError(f"{where} a file with the token, found: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where} ASCII letters, digits and signs, found other characters") from None
    if len(token.split()) > 1:
        raise SettingsError(f"{where} one token, found several words")
    require_strong(token, where)
    return SecretStr(token)


def _host_name(header: str) -> str:
    return header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]
