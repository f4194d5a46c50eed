"""`demo`: the whole road, twice over the same folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import recollect
from index_builder.demo import serve_settings
from index_builder.settings import DemoSettings
from service.store import Store


def test_demo_prints_table_question_and_answer_and_may_run_again(
    road: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def copy(encoder: object, folder: Path, precision: str) -> None:
        for name in ("encoder.onnx", "tokenizer.json"):
            shutil.copy(road.store / "bundles" / road.version / name, folder)

    monkeypatch.setattr("index_builder.build.export_encoder", copy)
    monkeypatch.setattr("index_builder.demo.write_sample", lambda folder: shutil.copytree(road.dataset, folder))
    for run in (1, 2):
        assert recollect.main(["demo", str(tmp_path), "--no-serve"]) == 0
        told = capsys.readouterr()
        lines = told.out.splitlines()
        assert lines[0] == "7 held-out sentences, in percent:"
        assert lines[1].split()[:4] == ["lambda", "tau", "b", "P@1"]
        assert [line.split()[0] for line in lines[2:7]] == ["0", "0.1", "0.5", "0.9", "1"]
        assert lines[8].endswith("':")
        assert len(lines[9:]) == 5
        assert len(Store(tmp_path / "store").versions()) == run
        assert told.err.count("sample: ") == 2 - run


def test_demo_serves_its_own_store(tmp_path: Path) -> None:
    settings = serve_settings(DemoSettings(folder=tmp_path, port=0))
    assert (settings.store, settings.host, settings.port) == (tmp_path / "store", "127.0.0.1", 0)
