"""Connect to the object store that a URL names, through obstore.

Credentials, regions and endpoints come from the usual environment variables: `AWS_*`, `GOOGLE_APPLICATION_CREDENTIALS`,
`AZURE_STORAGE_*`. With the extra `recollect-xmc[s3]`, S3 also accepts AWS profiles and single sign-on.
User and password may be part of a URL only if the URL begins with http:// or https://.
"""

from __future__ import annotations

import base64
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from recollect.core.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLASSES = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
    "https": "HTTPStore",
    "http": "HTTPStore",
}
# An endpoint in one of these variables may begin with http://, because local S3 servers use it. All other endpoints
# must begin with https://.
_ENDPOINT_VARIABLES = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
)
_CONNECT_TIMEOUT = timedelta(seconds=5)
# Time limit of a whole request. It is long enough for any file, because `read_timeout` ends a transfer that stalls.
_REQUEST_TIMEOUT = timedelta(days=1)
_RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}

# scheme://[user[:password]@]host[:port][/path][?query][#fragment]. A host contains no @, so the last @ before the path
# ends the credentials.
_URL = re.compile(
    r"(?P<scheme>[^:/?#]+)://(?:(?P<user>[^/?#]*)@)?(?P<host>\[[^\]/@]*\]|[^:/?#@]*)(?P<port>:\d*)?"
    r"(?P<path>/[^?#]*)?(?P<query>[?#].*)?",
    re.DOTALL,
)
# In an Azure URL, the part before the @ is the container.
_CONTAINER_SCHEMES = ("abfs", "abfss")


def without_credentials(url: str) -> str:
    """The URL as error messages show it: without user, password and query."""
    parts = _parse(url)
    container = parts["user"] if parts["scheme"] in _CONTAINER_SCHEMES and ":" not in (parts["user"] or "") else None
    before = f"{container}@" if container else ""
    return f"{parts['scheme']}://{before}{parts['host']}{parts['port'] or ''}{parts['path'] or ''}".rstrip("/")


def _parse(url: str) -> re.Match[str]:
    if (parts := _URL.fullmatch(url)) is None:
        scheme = url.partition("://")[0]
        raise StoreError(
            f"{scheme}://...: expected {scheme}://[USER:PASSWORD@]HOST[:PORT]/PATH, found another form; "
            "write / : @ ? and # inside a password as %2F %3A %40 %3F and %23"
        )
    return parts


def connect(url: str, read_timeout: timedelta) -> ObjectStore:
    """Create a client for the folder at a URL. The client connects when it is first used.

    `read_timeout` is the maximum time of a wait for an answer, or for the next bytes of an answer.
    """
    name, scheme = without_credentials(url), require_scheme(url)
    try:
        import obstore.store
    except ImportError:
        raise StoreError(f"{name}: needs obstore, which is not installed; run `pip install obstore`") from None
    client: dict[str, Any] = {
        "allow_http": scheme == "http" or any(os.environ.get(v, "").startswith("http:") for v in _ENDPOINT_VARIABLES),
        "connect_timeout": _CONNECT_TIMEOUT,
        "read_timeout": read_timeout,
        "timeout": _REQUEST_TIMEOUT,
    }
    options: dict[str, Any] = {"client_options": client, "retry_config": _RETRIES}
    address = quote(name, safe=":/@")
    if scheme == "s3":
        options |= _aws_profile(name)
    elif scheme in ("http", "https"):
        address = name  # is percent-encoded already
        # A proxy could cache the activations.
        client["default_headers"] = {"Cache-Control": "no-cache"} | _authorization(url)
    store: ObjectStore = getattr(obstore.store, _CLASSES[scheme]).from_url(address, **options)
    return store


def require_scheme(url: str) -> str:
    """The scheme of a URL. An unknown scheme and a URL with a query are refused."""
    parts = _parse(url)
    if parts["scheme"] not in _CLASSES:
        known = ", ".join(f"{scheme}://" for scheme in _CLASSES)
        raise StoreError(f"{without_credentials(url)}: expected a URL with one of {known}, found {parts['scheme']}://")
    if parts["query"]:
        raise StoreError(
            f"{without_credentials(url)}: expected a URL without ? and #, found one with {parts['query'][0]}; give "
            "credentials as environment variables, or as USER:PASSWORD@ in an https:// URL"
        )
    return parts["scheme"]


def _authorization(url: str) -> dict[str, str]:
    user = _parse(url)["user"] or ""
    if ":" not in user:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(unquote(user).encode()).decode()}


def _aws_profile(name: str) -> dict[str, Any]:
    """Credentials from AWS profiles and single sign-on; boto3 can read them, obstore cannot."""
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:
        raise StoreError(
            f"{name}: expected AWS credentials, found none; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ) from None
