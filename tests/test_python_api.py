"""The Python API: `recollect.open`, `train`, `tune`, `build`, `evaluate`, and `Model`."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import recollect
from recollect.core.errors import KeyFileError, SettingsError, StoreError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RECOLLECT_")]:
        monkeypatch.delenv(name)


def test_open_reads_the_environment_variables_of_the_flags(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_VERIFY_KEY", "/none.pem")
    with pytest.raises(KeyFileError, match=r"/none\.pem"):
        recollect.open(built.store)


@pytest.mark.parametrize(
    ("keywords", "error", "expected"),
    [
        ({"version": "v9"}, StoreError, "found no 'v9'"),
        ({"verify_key": "/none.pem"}, KeyFileError, "/none.pem"),
        ({"threads": -1}, SettingsError, "threads: expected 0 or more, found -1"),
        ({"device": "gpu"}, SettingsError, "device: expected one of auto, cpu, cuda; found 'gpu'"),
    ],
)
def test_open_refuses_wrong_arguments(
    built: Any, keywords: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match="^") as caught:
        recollect.open(**({"store": built.store} | keywords))
    assert expected in str(caught.value)


def test_keyword_that_is_not_given_comes_from_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_EPOCHS", "-1")
    with pytest.raises(recollect.UsageError, match="^recollect.train: epochs: expected greater"):
        recollect.train("data", out="run")


def test_error_for_a_missing_package_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "recollect.trainer.run", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing torch then fails as if it were not installed
    with pytest.raises(recollect.UsageError, match=r"^needs torch; pip install 'recollect-xmc\[train\]'$"):
        recollect.train("data", out="run", epochs=0)
