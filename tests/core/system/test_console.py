"""Progress bars on a terminal and in a log file."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from recollect.core.system import console as module
from recollect.core.system.console import progress_bar, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_file_gets_complete_lines_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    monkeypatch.setattr(module, "_SECONDS_IN_LOG", 0.0)
    assert list(with_progress(range(3), "text", "encode")) == [0, 1, 2]
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert lines[-1].startswith("encode: 100% 3/3 ")


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_nothing_is_shown_by_other_ranks(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(10, "text", "encode", shown=False) as bar:
        bar.update(10)
    assert stream.getvalue() == ""


def test_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress_bar(10, "text", "encode", done=4) as bar:
        bar.update(6)
    assert "\r" in stream.getvalue()
    assert "encode: 100%" in stream.getvalue()
