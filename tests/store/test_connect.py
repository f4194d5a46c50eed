"""URLs of object stores, their credentials, and their error messages."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from recollect.core.errors import StoreError
from recollect.store.connect import without_credentials
from recollect.store.object_folder import ObjectFolder
from tests import web as web_server
from tests.store.servers import WebServer

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://user:secret@host:8443/store/", "https://host:8443/store"),
        ("https://user:sec@ret@host/store", "https://host/store"),
        ("https://user:secret@host/a@b", "https://host/a@b"),
        ("https://user:secret@host/a:b@c", "https://host/a:b@c"),
        ("https://user:secret@[::1]:80/store", "https://[::1]:80/store"),
        ("s3://token@bucket/store?secret=1#x", "s3://bucket/store"),
        ("s3://bucket/a@b/c:d@e", "s3://bucket/a@b/c:d@e"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("http://[::1]:80/store", "http://[::1]:80/store"),
        ("abfss://container@account.windows.net/store", "abfss://container@account.windows.net/store"),
        ("az://container/store?sig=secret", "az://container/store"),
    ],
)
def test_store_name_does_not_contain_the_credentials_in_its_url(url: str, name: str) -> None:
    assert without_credentials(url) == name


@pytest.mark.parametrize("path", ["store", "store@other.example", "a:b@other.example/c"])
@pytest.mark.parametrize("password", ["hush%40hush", "hush%2Fhush", "hush@hush", "hush:hush"])
def test_credentials_in_a_url_are_sent_to_its_host_and_never_printed(
    web: WebServer, tmp_path: Path, error_of: Callable[..., str], password: str, path: str
) -> None:
    web.denied = True
    url = f"http://jane:{password}@127.0.0.1:{web.port}/{path}"
    line = error_of("versions", "--store", url, "--bundle-cache", tmp_path)
    name = f"http://127.0.0.1:{web.port}/{path}/activations/00000001.json"
    assert f"{name}: expected an answer, found: 401 Unauthorized; check" in line
    assert "jane" not in line
    assert "hush" not in line
    assert not [path for path in tmp_path.rglob("*") if "hush" in str(path)]
    assert web.authorization is not None
    sent = base64.b64decode(web.authorization.removeprefix("Basic ")).decode()
    assert sent == "jane:" + password.replace("%40", "@").replace("%2F", "/")


def test_password_is_not_sent_to_another_host_to_which_the_web_server_redirects() -> None:
    class Elsewhere(web_server.Handler):
        def do_GET(self) -> None:  # noqa: N802
            sent.append(self.headers["Authorization"])
            self.answer(200, b"content", {"Last-Modified": "Sat, 28 Nov 2026 06:23:02 GMT", "ETag": '"x"'})

    class Redirecting(web_server.Handler):
        def do_GET(self) -> None:  # noqa: N802
            sent.append(self.headers["Authorization"])
            self.answer(302, b"", {"Location": f"http://127.0.0.1:{other}/file"})

    sent = list[str | None]()
    with web_server.answering(Elsewhere) as other, web_server.answering(Redirecting) as port:
        content = ObjectFolder(f"http://jane:hush@127.0.0.1:{port}/store").read("CURRENT")
    assert content == b"content"
    assert sent == ["Basic " + base64.b64encode(b"jane:hush").decode(), None]


AMBIGUOUS = "write / : @ ? and # inside a password as %2F %3A %40 %3F and %23"
QUERY = "expected a URL without ? and #, found one with "
KNOWN = "expected a URL with one of s3://, gs://, az://, abfs://, abfss://, https://, http://, found"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *(
            (url, AMBIGUOUS)
            for url in ("https://jane:hush/hush@host/store", "s3://jane:hush@b:c/store", "s4://x:hush/y@z")
        ),
        ("https://host/store?sig=hush", f"https://host/store: {QUERY}"),
        ("az://container/store?sig=hush", f"az://container/store: {QUERY}"),
        ("s3://bucket/a#hush", f"s3://bucket/a: {QUERY}"),
        ("s4://host/store", f"s4://host/store: {KNOWN} s4://"),
        ("ftp://host/store", f"ftp://host/store: {KNOWN} ftp://"),
    ],
)
def test_url_that_is_ambiguous_or_unknown_is_refused_without_its_secrets(
    tmp_path: Path, error_of: Callable[..., str], url: str, message: str
) -> None:
    line = error_of("versions", "--store", url, "--bundle-cache", tmp_path)
    assert message in line
    assert "hush" not in line


@pytest.fixture
def no_aws_keys(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all credentials: from the environment, from profiles, and from the machine's metadata service."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.parametrize("boto3_installed", [True, False])
def test_missing_aws_credentials_are_reported_in_one_line(
    url: str,
    no_aws_keys: None,
    tmp_path: Path,
    error_of: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    boto3_installed: bool,
) -> None:
    if not boto3_installed:
        monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    line = error_of("versions", "--store", url, "--bundle-cache", tmp_path)
    assert re.search("expected AWS credentials, found none; set AWS_ACCESS_KEY_ID|no AWS credentials in the env", line)


def test_download_that_stalls_ends_with_an_error(
    web: WebServer, origin: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.store.object_folder._READ_TIMEOUT", SECOND / 4)
    web.paused_file = "instance_keys.faiss"
    folder = ObjectFolder(web.url)
    with pytest.raises(StoreError, match="instance_keys.faiss: expected an answer, found: .*; check the URL"):
        list(folder.pieces("bundles/A/instance_keys.faiss"))
