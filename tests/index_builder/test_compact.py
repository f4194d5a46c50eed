"""`recollect compact`: a bundle with all live entries answers as the live memory does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import recollect
from recollect.core.tables.entries import (
    Entry,
    InstanceFields,
    PutCorrection,
    PutInstance,
    PutLabel,
    Remove,
    subject_of,
)
from recollect.edits.log import MemoryLog, extent, path_of
from recollect.index_builder import draft as draft_module
from recollect.index_builder.errors import CheckFailed
from recollect.model import Model, open_model
from recollect.store.store import Store
from tests.conftest import TOPICS, Built
from tests.edits.logs import append

QUERIES = [sentences[-1] for sentences in TOPICS.values() if sentences] + ["A dog in the garden", "wild animals"]


@pytest.fixture
def store(built: Built, tmp_path: Path) -> Store:
    shutil.copytree(built.store, tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def compact(
    built: Built, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Compact the store with a run; return status, output and errors."""

    def compact(out: str | None, *flags: object, run: Path | None = built.run) -> tuple[int, str, str]:
        """`out` and `run` are left out if they are None."""
        arguments: list[object] = ["compact", store.root, "--index", "flat", *flags]
        arguments += [] if run is None else ["--run", run]
        arguments += [] if out is None else ["--out", tmp_path / out]
        status = recollect.main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return status, captured.out.strip(), captured.err

    return compact


def live_model(store: Store, version: str) -> Model:
    """A version with all entries of the log that its bundle does not contain."""
    model = open_model(store.root, version)
    model.predictor.apply(MemoryLog.of(store, model.manifest).read())
    return model


def write(store: Store, *entries: Entry) -> None:
    append(MemoryLog.of(store, store.manifest(store.require_current())), *entries)


def changes(encode: Callable[[list[str]], np.ndarray]) -> list[Entry]:
    def vector(text: str) -> np.ndarray:
        return encode([text])[0]

    def instance(uid: str, text: str, *labels: str, weight: float = 1.0) -> PutInstance:
        return PutInstance(uid, text, labels, vector(text), InstanceFields(weight=weight))

    def label(uid: str, text: str) -> PutLabel:
        return PutLabel(uid, text, vector(text))

    return [
        label("Animals", "Animals and pets"),
        instance("dog", "The dog sleeps in the garden", "Animals", "Law"),
        instance("cat", "A cat hunts mice", "Animals"),
        instance("Law/0", "The contract with the dog is void", "Law", "Animals"),
        label("Medicine", "Medicine and nursing"),
        Remove("label", "Cooking"),
        instance("gone", "Bread", "Football"),
        Remove("instance", "gone"),
        Remove("instance", "Football/1"),
        Remove("label", "Taxation"),
        label("Taxation", "Taxes, again"),
        instance("tax", "A tax on dogs", "Taxation"),
        instance("heavy", "Two judges and a dog", "Law", "Taxation", weight=2.5),
        PutCorrection("no", "How doctors treat high blood pressure", "Medicine", vector("How doctors treat it")),
    ]


def assert_same_answers(one: Model, other: Model) -> None:
    for options in ({}, {"lambda_": 1.0}, {"lambda_": 0.0}, {"top_b": 3}):
        for first, second in zip(
            one.predict(QUERIES, explain=True, top_k=20, **options),  # type: ignore[arg-type]
            other.predict(QUERIES, explain=True, top_k=20, **options),  # type: ignore[arg-type]
            strict=True,
        ):
            assert [each.uid for each in first] == [each.uid for each in second]
            for a, b in zip(first, second, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-6)
                shares = [{(each.uid, each.kind): each.share for each in label.because or []} for label in (a, b)]
                assert shares[0] == pytest.approx(shares[1], abs=1e-6)


def test_compacted_version_answers_as_the_live_memory_and_can_be_compacted_again(
    store: Store, compact: Callable[..., tuple[int, str, str]], tmp_path: Path, built: Built
) -> None:
    base = open_model(store.root)
    entries = changes(lambda texts: base.predictor.encode(texts))
    write(store, *entries)
    status, version, errors = compact("first")
    assert status == 0, errors
    manifest = store.manifest(version)
    assert manifest.memory_sequence == len(entries)
    assert open_model(store.root, version, live="off").sequence == len(entries)  # a client may require this change
    assert manifest.encoder == base.manifest.encoder
    assert (manifest.counts.instances, manifest.counts.labels) == (28 - 4 - 3 - 2 + 4, 8)
    kept = [logged.entry for logged in MemoryLog.of(store, manifest).read()]
    assert [entry.uid for entry in kept] == ["heavy", "no"]
    assert_same_answers(live_model(store, version), live_model(store, built.version))
    write(store, PutInstance("late", "A late dog", ["Law"], base.predictor.encode(["A late dog"])[0]))
    assert_same_answers(live_model(store, version), live_model(store, built.version))

    status, _, errors = compact("first", "--force")
    assert status == 2
    assert "--out: expected a folder that does not exist" in errors
    store.activate(version)
    status, _, errors = compact("other")
    assert status == 2
    assert f"--run: expected the instances of version {version}, found others" in errors
    status, second, errors = compact("second", "--activate", run=tmp_path / "first")
    assert status == 0, errors
    assert store.current() == second
    assert_same_answers(live_model(store, second), live_model(store, built.version))


def test_failed_compaction_does_not_change_the_log_and_changes_during_a_compaction_stay(
    store: Store, compact: Callable[..., tuple[int, str, str]], built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = open_model(store.root)
    entries = changes(base.predictor.encode)
    write(store, *entries)

    def fail(*_: object) -> None:
        raise CheckFailed("a check fails")

    with monkeypatch.context() as patched:
        patched.setattr(draft_module, "require_passed", fail)
        assert compact(None)[0] == 1
    assert extent(store) == (0, len(entries))

    def write_meanwhile(*_: object) -> None:
        write(store, Remove("instance", "heavy"), Remove("label", "Medicine"), *entries[4:5])

    monkeypatch.setattr(draft_module, "require_passed", write_meanwhile)
    status, version, errors = compact(None, "--activate")
    assert status == 0, errors
    assert [subject_of(each.entry)[1] for each in MemoryLog.of(store, store.manifest(version)).read()] == [
        "heavy",
        "Medicine",
        "Medicine",
    ]
    assert_same_answers(live_model(store, version), live_model(store, built.version))


def test_compaction_without_a_run_reads_exact_keys_from_the_bundle(
    store: Store, compact: Callable[..., tuple[int, str, str]], tmp_path: Path, built: Built
) -> None:
    base = open_model(store.root)
    write(store, *changes(base.predictor.encode))
    status, version, errors = compact(None, "--activate", run=None)
    assert status == 0, errors
    assert "keys of 28 instances read from the index" in errors
    assert_same_answers(live_model(store, version), live_model(store, built.version))
    write(store, PutInstance("late", "A late dog", ["Law"], base.predictor.encode(["A late dog"])[0]))
    status, second, errors = compact("kept", run=None)
    assert status == 0, errors
    assert_same_answers(live_model(store, second), live_model(store, built.version))
    assert (tmp_path / "kept" / "memory" / "keys.npy").is_file()


def test_compaction_without_a_run_encodes_the_texts_of_approximate_keys_again(
    store: Store, compact: Callable[..., tuple[int, str, str]], built: Built, quick_road_export: None
) -> None:
    recollect.build(built.run, store=store.root, index="SQ8", lexical="off", recall_target=0.5, activate=True)
    write(store, *changes(open_model(store.root).predictor.encode))
    status, with_run, errors = compact(None)
    assert status == 0, errors
    status, without_run, errors = compact(None, run=None)
    assert status == 0, errors
    assert "keys of 28 instances encoded again" in errors
    assert "keys of 8 labels encoded again" in errors
    assert_same_answers(live_model(store, without_run), live_model(store, with_run))


def test_compaction_that_would_leave_no_instance_is_refused(
    store: Store, compact: Callable[..., tuple[int, str, str]], built: Built
) -> None:
    bundle = store.open(built.version)
    write(store, *(Remove("instance", bundle.instances.uids[row]) for row in range(len(bundle.instances.uids))))
    status, _, errors = compact(None, run=None)
    assert status == 2
    assert "expected live entries that leave an instance and a label, found none left" in errors
    assert store.versions() == [built.version]


def test_compaction_without_live_entries_or_with_another_run_changes_nothing(
    store: Store, compact: Callable[..., tuple[int, str, str]], tmp_path: Path, built: Built
) -> None:
    status, version, errors = compact("out")
    assert (status, version) == (0, "")  # a nightly job must not fail on a quiet day
    assert "nothing to compact" in errors
    write(store, Remove("instance", "Law/0"))
    status, _, errors = compact("out", run=tmp_path / "missing")
    assert status == 2
    assert "missing/memory: expected a memory, found none" in errors
    assert store.versions() == [built.version]
    assert not (tmp_path / "out").exists()


def test_build_of_an_exported_memory_names_the_last_entry_that_it_contains(
    store: Store, built: Built, tmp_path: Path, quick_road_export: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (vector,) = open_model(store.root).predictor.encode(["A dog"])
    write(store, PutInstance("dog", "A dog", ["Law"], vector), PutInstance("cat", "A cat", ["Law"], vector))
    assert recollect.main(["export", str(store.root), "--out", str(tmp_path / "grown")]) == 0
    assert "30 instances, 8 labels, with the live entries up to 2" in capsys.readouterr().out
    command = ["build", str(built.run), "--store", str(store.root), "--index", "flat", "--lexical", "off"]
    assert recollect.main([*command, "--memory-sequence", "3"]) == 2
    assert "--memory-sequence: expected at most 2, the last live entry of" in capsys.readouterr().err
    assert recollect.main([*command, "--memory-sequence", "2"]) == 0
    version = capsys.readouterr().out.strip()
    manifest = store.manifest(version)
    assert manifest.memory_sequence == 2
    assert MemoryLog.of(store, manifest).read() == []
    write(store, PutInstance("bird", "A bird", ["Law"], vector))
    (store.root / path_of(1)).rename(store.root / path_of(2, ".pruned"))  # as `recollect prune --memory-log` does
    assert recollect.main([*command, "--memory-sequence", "1"]) == 2
    assert "--memory-sequence: expected at least 2, because `recollect prune" in capsys.readouterr().err
