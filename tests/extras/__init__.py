"""Tests of the extras. `tests.without_extras` deletes folders of `recollect/extras/`, and runs all other tests."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "recollect" / "extras"


def is_present(name: str) -> bool:
    """Whether the folder of an extra is there. A test outside the folder's tests must pass without it."""
    return (FOLDER / name / "__init__.py").exists()


def needs_extra(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_present(name), reason=f"recollect/extras/{name} was deleted")
