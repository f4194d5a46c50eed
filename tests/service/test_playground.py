"""The web pages of the service over HTTP: their files, their headers, and their switches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import recollect.service.playground
from tests.processes import Server, serving

STATIC = Path(recollect.service.playground.__file__).parent / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())


def named(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> httpx.Client:
    return server.client


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc"])
def test_page_may_load_files_only_from_its_own_server_and_every_file_it_names_exists(
    client: httpx.Client, path: str
) -> None:
    page = client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    files = re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', page.text)
    assert len(files) >= 3
    for file in files:
        answer = client.get(f"/{file}")
        assert answer.status_code == 200, file
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == policy


@pytest.mark.parametrize(
    "path",
    [
        "/playground/",
        "/playground/pages.py",
        "/playground/..%2fpages.py",
        "/playground/playground.html",
        "/docs/main.js",
    ],
)
def test_only_the_files_of_the_pages_are_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_facts_about_the_bundle_have_examples_from_the_memory(client: httpx.Client) -> None:
    facts = client.get("/playground/bundle").json()
    assert (facts["version"], facts["docs"]) == ("v3", True)
    assert facts["options"].keys() == client.get("/version").json()["defaults"].keys()
    assert facts["options"]["order"]["enum"] == ["score", "probability", "macro"]
    assert facts["size_bytes"] > 10_000
    assert len(facts["examples"]) == len(set(facts["examples"])) == 24
    explained = client.post("/predict", json={"query": facts["examples"][5], "explain": True, "lambda": 1.0}).json()
    assert facts["examples"][5] in {reason["text"] for label in explained["labels"] for reason in label["because"]}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_file_neither_turns_text_into_html_nor_names_another_server(path: Path) -> None:
    text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)
    assert not re.search(r"https?://|//[a-z]+\.[a-z]+/", text)
    if path.suffix == ".html":
        assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*src=)", text)
