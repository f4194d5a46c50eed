"""`recollect export`: the memory of a version as a dataset folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.split import fingerprint
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import Built


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_exported_dataset_is_the_one_that_the_memory_was_made_from(built: Built, tmp_path: Path) -> None:
    out = recollect.export(built.store, out=tmp_path / "exported")
    original, exported = open_dataset(built.dataset), open_dataset(out)
    assert fingerprint(exported.labels, exported.read_split("train")) == fingerprint(
        original.labels, original.read_split("train")
    )
    assert rows(out / "labels.jsonl") == rows(built.dataset / "labels.jsonl")


def test_training_on_an_exported_memory_encodes_no_text_again(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recollect.export(built.store, out=tmp_path / "exported")
    write_run(TrainSettings(epochs=0, dataset=out, out=tmp_path / "run", vectors=built.run))
    assert "0 texts to encode" in capsys.readouterr().err
    before, after = open_memory(built.run / "memory"), open_memory(tmp_path / "run" / "memory")
    assert after.plan.dataset_sha256 == before.plan.dataset_sha256
    assert (after.keys == before.keys).all()


def test_live_entries_are_exported(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.store, tmp_path / "store")
    model = recollect.open(tmp_path / "store", live="write")
    labels = [{"uid": "Animals", "text": "Animals and pets"}, {"uid": "Law", "text": "Law and courts"}]
    instances = [
        {"uid": "dog", "text": "The dog sleeps", "labels": ["Animals", "Law"]},
        {"uid": "Law/0", "text": "The contract is void", "labels": ["Law"]},
    ]
    model.add(labels=labels, instances=instances)
    model.remove(labels=["Cooking"], instances=["Football/1"])
    out = recollect.export(tmp_path / "store", out=tmp_path / "exported")

    def exported(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The rows before and after the changes, by uid."""
        before, after = ({row["uid"]: row for row in rows(folder / name)} for folder in (built.dataset, out))
        return before, after

    before, after = exported("labels.jsonl")
    del before["Cooking"]
    assert after == before | {label["uid"]: label for label in labels}
    before, after = exported("train.jsonl")
    kept = {uid: row for uid, row in before.items() if row["labels"] != ["Cooking"] and uid != "Football/1"}
    assert len(kept) == len(before) - 5
    for row in [*kept.values(), *after.values()]:
        row["labels"].sort()
    assert after == kept | {instance["uid"]: instance for instance in instances}
    assert len(open_dataset(out).read_split("train")) == len(after)


@pytest.mark.parametrize("name", ["link", "dangling", "volume", "."])
def test_export_and_sample_fill_an_empty_folder_also_through_a_link(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for verb in ("export", "sample"):
        folder = tmp_path / verb
        (folder / "target").mkdir(parents=True)
        (folder / "link").symlink_to("target")
        (folder / "dangling").symlink_to("absent")
        (folder / "volume" / "lost+found").mkdir(parents=True)  # as in an empty volume
        (folder / "volume" / ".DS_Store").touch()
        monkeypatch.chdir(folder / "target" if name == "." else folder)
        arguments = ["export", str(built.store), "--out"] if verb == "export" else ["sample"]
        assert recollect.main([*arguments, name]) == 0
        assert len(open_dataset(Path(name)).read_split("train")) > 0
        assert (folder / name).is_symlink() == (name in ("link", "dangling"))
        assert not Path(name, ".incoming").exists()


def test_export_and_sample_fill_a_mount_point(built: Built, tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        recollect.export(built.store, out=tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.jsonl", "train.jsonl"]
        for path in tmp_path.iterdir():
            path.unlink()
        assert recollect.main(["sample", str(tmp_path)]) == 0
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_export_that_fails_leaves_nothing(built: Built, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out", tmp_path):
        with pytest.raises(recollect.ERRORS):
            recollect.export(built.store, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("version", "message"), [("none", "none"), ("../run", "expected letters, digits")])
def test_unknown_version_is_refused_and_nothing_is_written(
    built: Built, tmp_path: Path, version: str, message: str
) -> None:
    with pytest.raises(recollect.ERRORS, match=message):
        recollect.export(built.store, out=tmp_path / "out", version=version)
    assert list(tmp_path.iterdir()) == []
