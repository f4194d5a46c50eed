"""Stores with small versions, which open in milliseconds and differ in the number of labels in an answer."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.service.http_helpers import (
    PATIENCE_SECONDS,
    add_version,
    answers_with,
    copy_store,
    light_encoder,
    make_first,
    with_changed_files,
)

# For each version, the number of labels in an answer.
TOP_K = {"v3": 3, "v5": 5}


def light_store(source: Path, version: str, to: Path) -> Path:
    """Write a store with versions v3 and v5 of a real bundle, with a tiny encoder; v3 is current.

    The versions have no equal files.
    """
    store = copy_store(source, to)
    add_version(store, version, "light", light_encoder)
    add_version(store, "light", "changed", with_changed_files)
    for name, source_version in (("v3", "light"), ("v5", "changed")):
        add_version(store, source_version, name, answers_with(TOP_K[name]))
    make_first(store, "v3")
    return store


def until_serves(client: httpx.Client, version: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.get("/version").json()["version"] != version:
        assert time.monotonic() < deadline, f"{version} is not served"
        time.sleep(0.01)
