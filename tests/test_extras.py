"""A copy of Recollect without the folders of `recollect/extras/`: a user who asks for an extra gets one message."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
# Runs the command line, or Python code, with the Recollect of the current folder.
COMMAND = "import sys, recollect; sys.exit(recollect.main())"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(REPOSITORY / "recollect", folder / "recollect", ignore=shutil.ignore_patterns("__pycache__"))
    for source in (folder / "recollect" / "extras").glob("*/*.py"):  # the folders stay, as those of compiled files do
        source.unlink()
    (folder / "in.jsonl").write_text('{"text": "bread"}\n')
    return folder


def run(folder: Path, code: str, *arguments: object) -> str:
    """The last line of the errors, of a program that fails."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode != 0, done.stdout) == (True, ""), done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "folder", "arguments"),
    [
        ("parquet", "parquet", ("predict", "--input", "in.parquet")),
        ("ray", "ray", ("predict", "--input", "in.jsonl", "--ray")),
        ("hf", "hub", ("build", "hf://user/name")),
        ("push", "hub", ("push", "RUN", "--to", "user/name")),
        ("milvus", "milvus", ("build", "RUN", "--engine", "milvus", "--engine-uri", "milvus.db")),
        ("annif", "annif", ("serve", "--annif", "--port", "0")),
        ("server", "encoder_server", ("train", "DATASET", "--out", "new", "--encoder", "http://localhost/v1#model")),
    ],
)
def test_a_feature_whose_folder_was_deleted_is_named_in_one_line(
    built: Any, copied: Path, name: str, folder: str, arguments: tuple[str, ...]
) -> None:
    made = {"RUN": str(built.run), "DATASET": str(built.dataset)}
    verb, *rest = (made.get(each, each) for each in arguments)
    store = [] if verb in ("push", "train") else ["--store", str(built.store)]
    message = f"{name}: expected the folder recollect/extras/{folder}, found none; restore the folder"
    assert run(copied, COMMAND, verb, *rest, *store).endswith(message)


def test_public_name_of_the_classifier_is_an_import_error_without_its_folder(copied: Path) -> None:
    message = "ImportError: recollect.sklearn needs the folder recollect/extras/sklearn; restore the folder"
    assert run(copied, "import recollect.sklearn") == message
