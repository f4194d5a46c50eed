import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.sample import SampleCounts, write_sample
from recollect.trainer.data.stdlib.modules import read_modules
from recollect.trainer.data.stdlib.sentences import sentences
from recollect.trainer.errors import DatasetError

# This program writes the sample into a folder and prints the counts and the imported modules.
WRITE = """
import json, sys
from pathlib import Path
from recollect.trainer.data.sample import write_sample
counts = write_sample(Path(sys.argv[1]))
print(json.dumps([[counts.labels, counts.train, counts.test], sorted(sys.modules)]))
"""
# Changes to the interpreter that a program may make before it writes the sample.
DISTURB = """
import asyncio, builtins, decimal, sys, unittest.mock
sys.excepthook = sys.displayhook = lambda *_: None
builtins.injected = len
builtins.Injected = unittest.mock.Mock
"""


class Sample(NamedTuple):
    folder: Path
    counts: SampleCounts
    loaded: list[str]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text("utf-8").splitlines()]

    def uids(self) -> list[str]:
        return [row["uid"] for row in self.rows("labels")]


@pytest.fixture(scope="module")
def write_in_subprocess(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Sample]:
    """Returns a function that writes the sample in a new interpreter."""

    def write(script: str, seed: str) -> Sample:
        folder = tmp_path_factory.mktemp("samples") / "made" / "sample"
        output = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, folder],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        counts, loaded = json.loads(output)
        return Sample(folder, SampleCounts(*counts), loaded)

    return write


@pytest.fixture(scope="module")
def sample(write_in_subprocess: Callable[..., Sample]) -> Sample:
    return write_in_subprocess(WRITE, seed="1")


def test_sample_bytes_do_not_depend_on_changes_to_the_interpreter(
    sample: Sample, write_in_subprocess: Callable[..., Sample]
) -> None:
    other = write_in_subprocess(DISTURB + WRITE, seed="2")
    for name in ("labels.jsonl", "train.jsonl", "test.jsonl"):
        assert (other.folder / name).read_bytes() == (sample.folder / name).read_bytes()


def test_sample_is_a_dataset_of_thousands_of_labels(sample: Sample) -> None:
    dataset = open_dataset(sample.folder)
    train, test = dataset.read_split("train"), dataset.read_split("test")
    assert sample.counts == SampleCounts(len(dataset.labels), len(train), len(test))
    assert len(dataset.labels) > 3_000
    assert len(train) > len(test) > 500


def test_math_sqrt_has_a_sentence_about_the_square_root(sample: Sample) -> None:
    position = sample.uids().index("math.sqrt")
    texts = [row["text"] for row in sample.rows("train") if position in row["labels"]]
    assert any("square root" in text for text in texts)


@pytest.mark.parametrize(
    "name",
    [
        "json",
        "json.dumps",
        "pathlib.Path.exists",
        "builtins.len",
        "os.path.join",  # defined in posixpath
        "os.path.exists",  # defined in genericpath, re-exported by posixpath
        "asyncio.run",  # defined in asyncio.runners
        "csv.reader",  # defined in the C module _csv
        "sqlite3.connect",  # defined in _sqlite3, re-exported by sqlite3.dbapi2
        "struct",  # its docstring comes from _struct
    ],
)
def test_labels_are_the_names_that_users_import(sample: Sample, name: str) -> None:
    assert name in sample.uids()


def test_sample_has_no_label_for_private_names_or_internal_modules(sample: Sample) -> None:
    uids = sample.uids()
    assert uids == sorted(uids)
    assert not [uid for uid in uids if any(part.startswith("_") for part in uid.split("."))]
    skipped = ("test.", "idlelib", "lib2to3", "antigravity", "unittest.case.", "posix.", "posixpath.join")
    assert not [uid for uid in uids if uid.startswith(skipped)]


def test_every_label_has_a_train_sentence_and_splits_are_disjoint(sample: Sample) -> None:
    train, test = sample.rows("train"), sample.rows("test")
    trained = {position for row in train for position in row["labels"]}
    assert trained == set(range(sample.counts.labels))
    texts = [row["text"] for row in train + test]
    assert len(set(texts)) == len(texts)
    assert len({row["uid"] for row in train + test}) == len(texts)


def test_sentence_in_several_docstrings_has_the_names_of_all_of_them_as_labels(sample: Sample) -> None:
    uids = sample.uids()
    labels = {row["text"]: [uids[position] for position in row["labels"]] for row in sample.rows("train")}
    assert {"builtins.open", "io.open"} <= set(labels["Open file and return a stream."])


def test_writing_the_sample_never_imports_python_modules(sample: Sample) -> None:
    assert not {"antigravity", "this", "turtle", "tkinter", "pdb", "sqlite3", "readline"} & set(sample.loaded)


def test_module_whose_source_cannot_be_parsed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("print 'a Python of old'")
    (tmp_path / "colorsys.py").write_bytes("# coding: latin-1\n'''Café.'''".encode("latin-1"))
    (tmp_path / "mine.py").write_text("'''Not of the library.'''")
    monkeypatch.setattr("recollect.trainer.data.stdlib.modules.sysconfig.get_path", lambda _: str(tmp_path))
    modules = read_modules()
    assert modules["colorsys"].docstring == "Café."
    assert not {"json", "mine"} & modules.keys()


def test_sample_is_written_into_an_empty_folder_and_no_temporary_folder_remains(
    tmp_path: Path, one_docstring: None
) -> None:
    folder = tmp_path / "sample"
    folder.mkdir()
    assert write_sample(folder) == SampleCounts(labels=1, train=1, test=0)
    assert list(tmp_path.iterdir()) == [folder]
    assert sorted(path.name for path in folder.iterdir()) == ["labels.jsonl", "test.jsonl", "train.jsonl"]


def test_sample_folder_that_contains_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"an empty one; found notes\.txt in it: remove it or name another folder"):
        write_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_sample_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sample").write_text("mine")
    with pytest.raises(DatasetError, match="found a file"):
        write_sample(tmp_path / "sample")
    assert (tmp_path / "sample").read_text() == "mine"


def test_disk_error_while_writing_the_sample_leaves_no_files(
    tmp_path: Path, one_docstring: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recollect.trainer.data.sample._write_lines", full)
    with pytest.raises(OSError, match="No space left"):
        write_sample(tmp_path / "sample")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def one_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the standard library by one function, so that writing is quick."""
    monkeypatch.setattr(
        "recollect.trainer.data.sample.read_docstrings", lambda: {"math.sqrt": ["Return the square root of x."]}
    )


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Return the square root of x.", ["Return the square root of x."]),
        (
            "sqrt(x) -> float\n\nReturn the root,\n    whatever it is.  See also isqrt, e.g. An integer.",
            ["Return the root, whatever it is.", "See also isqrt, e.g. An integer."],
        ),
        ("Count the ``calls`` of :func:`len`.\n\n>>> len([])\n0\n", ["Count the calls of len."]),
        ("Open it at once:\n\n    with open(path) as file:\n        the text is read here", []),
        ("Heading of it all\n=================\n\nFirst come the words.", ["First come the words."]),
        ("Make one of these.\n\nname -- what it is called by all\nsize: how large it is made", ["Make one of these."]),
        ("names = csv.list_dialects()", []),
        ("Too short", []),
        ("Far too long a sentence " * 20, []),
    ],
)
def test_docstring_is_split_into_its_sentences(docstring: str, expected: list[str]) -> None:
    assert sentences(docstring) == expected
