"""A request uses the source files of the service in the order that the documentation lists."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.http.api_keys import read_api_keys
from service.http.app import create_app
from service.reloaded_file import ReloadedFile
from service.serve_settings import ServeSettings
from service.serving.batcher import Batcher
from service.store.store import Store
from service.telemetry.metrics import Metrics
from service.versions.model_manager import ModelManager
from service.versions.opening import Opener
from service.versions.replicas import replicas_of

REPOSITORY = Path(__file__).parents[2]
SECRET = "0123456789abcdef"
MAX_FILES = 14


class Recorder:
    """Records the source files of the service in the order of the first call of a function in each file."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.recording = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.recording or event != "call" or threading.current_thread().name.startswith("follow-"):
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(REPOSITORY / "service"):
            name = path.relative_to(REPOSITORY).as_posix()
            if name not in self.files:
                self.files.append(name)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    threading.setprofile(recorder)
    yield recorder
    threading.setprofile(None)
    sys.setprofile(None)


def files_of_a_request(store: Path, recorder: Recorder, rate: float | None = None, **options: Any) -> list[str]:
    """The source files that a second request uses, in order; with an API key if `rate` is given."""
    opened, metrics = Store(store), Metrics()
    manager = ModelManager(Opener(opened, threads=1), replicas_of(opened, None), metrics, 60)
    manager.open_current()
    keys = None
    if rate is not None:
        (store / "keys").write_text(f"shop {SECRET} {rate}\n")
        keys = ReloadedFile(store / "keys", lambda path: read_api_keys(path, 0.0))
    batcher = Batcher(1, 256, 32, metrics, hang_seconds=60)
    app = create_app(manager, batcher, ServeSettings(store=store, **options), metrics, None, keys)
    with TestClient(app, headers={"X-API-Key": SECRET}) as client:
        client.post("/predict", json={"query": "bread"})
        wait_until_idle("predict-0")
        recorder.recording = True
        response = client.post("/predict", json={"query": "milk"})
        recorder.recording = False
    assert response.status_code == 200
    return recorder.files


def wait_until_idle(name: str) -> None:
    """Wait until a thread of the batcher is idle."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    while sys._current_frames()[thread.ident or 0].f_code.co_name != "wait":
        time.sleep(0.01)


def documented_files() -> list[str]:
    """The source files in the numbered list under the heading `## A request` of the documentation."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## A request\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `(service/[\w/]+\.py)`", section, flags=re.MULTILINE)


def test_documentation_lists_the_source_files_of_a_request_in_order(store: Path, recorder: Recorder) -> None:
    assert files_of_a_request(store, recorder) == documented_files()
    assert len(documented_files()) <= MAX_FILES


def test_request_without_an_answer_cache_uses_one_source_file_less(store: Path, recorder: Recorder) -> None:
    files = files_of_a_request(store, recorder, cache_mb=0)
    assert files == [name for name in documented_files() if name != "service/serving/answer_cache.py"]


def test_api_key_adds_one_source_file_and_its_rate_limit_another_one(store: Path, recorder: Recorder) -> None:
    added = "service/http/api_keys.py"
    assert [name for name in files_of_a_request(store, recorder, rate=0.0) if name != added] == documented_files()
    assert added in recorder.files
    recorder.files = []
    limited = files_of_a_request(store, recorder, rate=100.0)
    assert {name for name in limited if name not in documented_files()} == {added, "service/serving/rate_limit.py"}
    assert [name for name in limited if name in documented_files()] == documented_files()
