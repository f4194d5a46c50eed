"""`recollect train` from the command line: what it writes, what it resumes, what it refuses."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from trainer.checkpoint import load_checkpoint
from trainer.encoder import Encoder
from trainer.memory import open_memory

REPOSITORY = Path(__file__).parents[2]


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Train = Callable[..., Outcome]


@pytest.fixture
def train(toy: Path, tiny_bert: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Train:
    """Runs `recollect train` on the toy with the tiny encoder; flags given later win."""

    def run(*flags: object, dataset: Path = toy) -> Outcome:
        usual = ["--out", tmp_path / "run", "--encoder", tiny_bert.folder, "--max-length", 32, "--label-max-length", 8]
        capfd.readouterr()
        status = recollect.main([str(argument) for argument in ("train", dataset, *usual, *flags)])
        return Outcome(status, *capfd.readouterr())

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def refuse_to_encode(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def encode(*_: object) -> None:
        pytest.fail("nothing should be encoded")

    return lambda: monkeypatch.setattr(Encoder, "encode", encode)


def test_training_writes_a_checkpoint_and_the_memory_it_makes(train: Train, run_folder: Path) -> None:
    outcome = train()
    assert (outcome.status, outcome.out) == (0, "")
    assert "14 instances, 5 labels" in outcome.err
    assert "19 keys, 19 encoded now" in outcome.err
    assert sorted(path.name for path in run_folder.iterdir()) == ["checkpoint", "memory"]
    memory = open_memory(run_folder / "memory")
    encoder = load_checkpoint(run_folder / "checkpoint", "cpu")
    texts = [json.loads(line)["text"] for line in (run_folder / "memory" / "labels.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(memory.keys[14:], encoder.encode(texts, 8), atol=1e-6)


def test_training_again_encodes_nothing(train: Train, run_folder: Path, refuse_to_encode: Callable[[], None]) -> None:
    train()
    before = (run_folder / "memory" / "keys.npy").stat().st_mtime_ns
    refuse_to_encode()
    outcome = train()
    assert outcome.status == 0
    assert "already done, 19 keys" in outcome.err
    assert (run_folder / "memory" / "keys.npy").stat().st_mtime_ns == before


def test_training_again_restores_a_lost_checkpoint(
    train: Train, run_folder: Path, refuse_to_encode: Callable[[], None]
) -> None:
    train()
    shutil.rmtree(run_folder / "checkpoint")
    refuse_to_encode()
    assert train().status == 0
    assert load_checkpoint(run_folder / "checkpoint", "cpu").config.max_length == 32


def test_interrupted_training_says_so_and_goes_on_when_run_again(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Encoder.encode

    def encode(self: Encoder, texts: Any, *arguments: Any) -> np.ndarray:
        if len(texts) == 5:
            raise KeyboardInterrupt
        return real(self, texts, *arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Encoder, "encode", encode)
        outcome = train()
    assert outcome.status == 130
    assert outcome.err.endswith("recollect train: interrupted\n")
    assert "19 keys, 5 encoded now" in train().err
    assert open_memory(run_folder / "memory").keys.shape == (19, 32)


@pytest.mark.parametrize(
    ("flags", "differs"),
    [
        (["--max-length", 16], "encoder"),
        (["--label-max-length", 16], "encoder"),
        (["--pooling", "cls"], "encoder"),
        (["--key-dtype", "float16"], "key_dtype"),
    ],
)
def test_other_settings_are_refused_by_name_and_change_nothing(
    train: Train, run_folder: Path, flags: list[object], differs: str
) -> None:
    train()
    before = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    outcome = train(*flags)
    assert outcome.status == 2
    assert f"found one that differs in {differs}; choose another --out, or replace it with --overwrite" in outcome.err
    assert {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()} == before


def test_other_dataset_is_refused_by_what_differs(train: Train, toy: Path) -> None:
    train()
    with (toy / "train.jsonl").open("a") as file:
        file.write('{"uid": "new", "text": "red fox", "labels": [0]}\n')
    outcome = train()
    assert outcome.status == 2
    assert "differs in instances, dataset_sha256;" in outcome.err


def test_other_encoder_is_refused_by_what_differs(train: Train, tiny_distilbert: Any) -> None:
    train()
    outcome = train("--encoder", tiny_distilbert.folder)
    assert outcome.status == 2
    assert "differs in encoder, encoder_sha256;" in outcome.err


def test_overwrite_replaces_memory_and_checkpoint(train: Train, run_folder: Path) -> None:
    train()
    assert train("--max-length", 16, "--key-dtype", "float16", "--overwrite").status == 0
    assert open_memory(run_folder / "memory").keys.dtype == np.float16
    assert load_checkpoint(run_folder / "checkpoint", "cpu").config.max_length == 16


def test_broken_memory_is_refused_and_overwrite_replaces_it(train: Train, run_folder: Path) -> None:
    train()
    (run_folder / "memory" / "memory.json").write_text("{")
    assert train().status == 2
    assert train("--overwrite").status == 0
    assert open_memory(run_folder / "memory").keys.shape == (19, 32)


def test_environment_sets_what_no_flag_says(train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_POOLING", "cls")
    monkeypatch.setenv("RECOLLECT_MAX_LENGTH", "7")
    train()
    config = load_checkpoint(run_folder / "checkpoint", "cpu").config
    assert (config.pooling, config.max_length) == ("cls", 32)


BAD_SETTINGS: dict[str, tuple[list[object], str]] = {
    "unknown encoder": (["--encoder", "no-such/encoder"], "--encoder no-such/encoder: expected a Hugging Face"),
    "limit beyond positions": (["--max-length", 65], "--max-length 65: expected at most 64"),
    "limit too small": (["--max-length", 2], "--max-length: expected greater than or equal to 3; found '2'"),
    "limit no number": (["--max-length", "long"], "--max-length: expected a valid integer"),
    "epochs": (["--epochs", 1], "--epochs: expected "),
    "unknown pooling": (["--pooling", "max"], "--pooling: expected 'auto', 'mean' or 'cls'; found 'max'"),
    "unknown format": (["--format", "csv"], "--format: expected 'auto', 'native', 'xmc', 'pecos' or 'parquet'"),
    "format of other files": (["--format", "pecos"], "expected Y.txt or label_map.txt or output-items.txt"),
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("flags", "complaint"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_setting_ends_with_status_2_and_one_plain_line(
    train: Train, run_folder: Path, flags: list[object], complaint: str
) -> None:
    outcome = train(*flags)
    message = [line for line in outcome.err.splitlines() if "14 instances" not in line]
    assert (outcome.status, outcome.out) == (2, "")
    assert len(message) == 1, outcome.err
    assert message[0].startswith("recollect train: ")
    assert complaint in message[0]
    assert not run_folder.exists()


def test_gpu_that_is_not_there_is_refused(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = train("--device", "cuda")
    assert outcome.status == 2
    assert "--device cuda: expected a CUDA GPU, found none; use --device cpu" in outcome.err


BAD_DATA: dict[str, tuple[bytes, str]] = {
    "broken JSON": (b'{"uid": ', "train.jsonl:2: expected one JSON object, found broken JSON"),
    "position out of range": (b'{"text": "t", "labels": [5]}', "train.jsonl:2: label position 5 is out of range"),
    "unknown label": (b'{"text": "t", "labels": ["x"]}', "train.jsonl:2: label uid 'x' is unknown"),
    "duplicate": (b'{"uid": "i0", "text": "t", "labels": []}', "train.jsonl: uid 'i0' occurs twice, in rows 1 and 2"),
    "empty text": (b'{"text": " ", "labels": []}', "train.jsonl:2: 'text': the text is empty"),
    "invalid UTF-8": (b'{"text": "\xff", "labels": []}', "train.jsonl:2: expected UTF-8"),
    "lone surrogate": (b'{"text": "\\udfff", "labels": []}', "train.jsonl:2: 'text': the text holds half"),
}


@pytest.mark.parametrize(("line", "complaint"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_ends_with_status_2_and_one_plain_line(
    train: Train, toy: Path, run_folder: Path, line: bytes, complaint: str
) -> None:
    (toy / "train.jsonl").write_bytes(b'{"uid": "i0", "text": "first", "labels": [0]}\n' + line + b"\n")
    outcome = train()
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"recollect train: {toy}/{complaint}")
    assert outcome.err.count("\n") == 1
    assert not run_folder.exists()


def test_missing_dataset_ends_with_status_2(train: Train, tmp_path: Path) -> None:
    outcome = train(dataset=tmp_path / "absent")
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "absent: expected a dataset folder, found nothing" in outcome.err


def test_run_folder_that_is_a_file_ends_with_status_2(train: Train, run_folder: Path) -> None:
    run_folder.write_text("precious")
    outcome = train()
    assert outcome.status == 2
    assert f"recollect train: {run_folder}" in outcome.err
    assert run_folder.read_text() == "precious"


class TestProcess:
    def run(self, *arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "recollect", "train", *map(str, arguments)]
        environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1"} | environment
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment)

    def test_bad_input_exits_with_2_and_one_line_without_traceback(self, toy: Path, tmp_path: Path) -> None:
        (toy / "train.jsonl").write_text("{")
        done = self.run(toy, "--out", tmp_path / "run")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"recollect train: {toy}/train.jsonl:1: expected one JSON object")
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "complaint"), [([], "required"), (["data", "--out", "x", "--bogus"], "--bogus")]
    )
    def test_bad_usage_exits_with_2_and_no_traceback(self, arguments: list[str], complaint: str) -> None:
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr

    def test_encoder_from_the_hub_is_found_in_its_cache_and_pooled_as_it_declares(
        self, toy: Path, tiny_bert: Any, tmp_path: Path
    ) -> None:
        cached = tmp_path / "hub" / "models--acme--tiny"
        snapshot = cached / "snapshots" / ("a" * 40)
        shutil.copytree(tiny_bert.folder, snapshot)
        (snapshot / "1_Pooling").mkdir()
        (snapshot / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("a" * 40)
        limits = ["--max-length", 32, "--label-max-length", 8]
        done = self.run(toy, "--out", tmp_path / "run", "--encoder", "acme/tiny", *limits, HF_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        saved = json.loads((tmp_path / "run" / "checkpoint" / "recollect.json").read_text())
        assert (saved["name"], saved["pooling"]) == ("acme/tiny", "cls")


def test_second_train_into_the_same_run_is_refused_while_the_first_writes(train: Train, run_folder: Path) -> None:
    train()
    descriptor = os.open(run_folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        outcome = train()
    finally:
        os.close(descriptor)
    assert outcome.status == 2
    assert "another `recollect train` writes here" in outcome.err
