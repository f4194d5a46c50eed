"""`recollect demo` prints measurements and an answer, and serves the bundle."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.store.store import Store


def test_demo_prints_a_table_a_question_and_its_answer_and_can_run_again(
    built: Any,
    quick_road_export: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "recollect.trainer.data.sample.write_sample", lambda folder, _: shutil.copytree(built.dataset, folder)
    )
    for run in (1, 2):
        assert recollect.main(["demo", str(tmp_path), "--no-serve"]) == 0
        printed = capsys.readouterr()
        lines = printed.out.splitlines()
        assert lines[0] == "7 held-out sentences, in percent:"
        table = lines[lines.index("") + 1 :]
        assert table[0].split()[:2] == ["lambda", "P@1"]
        assert [line.split()[:2] for line in table[1:3]] == [
            ["chosen", "0.5"],
            [table[2].split()[0], table[2].split()[1]],
        ]
        assert lines[-6].endswith("':")
        assert len(Store(tmp_path / "store").versions()) == run
        assert printed.err.count("sample: ") == 2 - run


def test_demo_prints_its_url_and_serves_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, opened = [], []
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("recollect.cli.demo.build_and_ask", lambda folder: ["the table"])
    monkeypatch.setattr(
        "recollect.service.process.server.serve", lambda settings, listener: served.append((settings.store, listener))
    )
    assert recollect.main(["demo", str(tmp_path), "--port", "0"]) == 0
    (store, listener), printed = served[0], capsys.readouterr().out
    assert store == tmp_path / "store"
    url = r"http://127\.0\.0\.1:[1-9]\d+/"
    assert re.fullmatch(rf"the table\n\nTry it in a browser: {url} \(stop with Ctrl-C\)\n", printed)
    assert opened == []
    assert listener.fileno() == -1  # closed


def test_demo_fails_at_once_if_the_port_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert recollect.main(["demo", str(tmp_path / "demo"), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}: expected an address to listen on" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
