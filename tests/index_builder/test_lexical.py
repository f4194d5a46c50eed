"""`recollect build --lexical`: the index of words, the choice of its weight, and its measurement."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.bundle.manifest import Manifest
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.lexical import measure_gain, write_lexical
from recollect.index_builder.settings import BuildSettings, EvaluateSettings
from recollect.model import open_model
from recollect.store.store import Store
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings

LABELS = 6


def write_dataset(folder: Path, telling: bool) -> Path:
    """Write texts of random letters; if `telling`, each text contains a word that names its label."""
    rng = np.random.default_rng(5)
    folder.mkdir()

    def word() -> str:
        return "".join(rng.choice(list("abcdefghij"), size=6))

    def row(nth: int) -> dict[str, Any]:
        label = nth % LABELS
        words = [word() for _ in range(4)] + ([f"sign{label}"] if telling else [])
        return {"uid": str(nth), "text": " ".join(rng.permutation(words)), "labels": [f"label {label}"]}

    files = {
        "train": [row(nth) for nth in range(96)],
        "test": [row(nth) for nth in range(24)],
        "labels": [{"uid": f"label {label}", "text": word()} for label in range(LABELS)],
    }
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return folder


def encode(dataset: Path, tiny_run: Path, out: Path) -> Path:
    encoder = str(tiny_run.parent / "encoder")
    write_run(TrainSettings(epochs=0, dataset=dataset, out=out, encoder=encoder, max_length=64))
    return out


@pytest.fixture(scope="module")
def telling(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose words name the labels, and its run with a random encoder."""
    folder = tmp_path_factory.mktemp("telling")
    encode(write_dataset(folder / "dataset", telling=True), tiny_run, folder / "run")
    return folder


def built_manifest(run: Path, store: Path, **settings: Any) -> Manifest:
    version = build(BuildSettings(run=run, store=store, index="flat", activate=True, **settings))
    return Store(store).manifest(version)


def test_auto_keeps_an_index_that_gains_and_evaluate_measures_its_weights(
    telling: Path, quick_export: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = built_manifest(telling / "run", tmp_path)
    assert manifest.has_lexical_index
    assert manifest.defaults.word_weight > 0
    assert manifest.metrics["nDCG@5_gain_words"] > 2 * manifest.metrics["nDCG@5_gain_words_error"]
    assert f"lexical: word_weight {manifest.defaults.word_weight:g}: nDCG@5 " in capsys.readouterr().err

    def measure(**given: Any) -> list[dict[str, Any]]:
        return evaluate(EvaluateSettings(dataset=telling / "dataset", store=tmp_path, **given)).rows

    vectors, default, words = measure(word_weight=[0, manifest.defaults.word_weight, 1])
    assert vectors["nDCG@5"] < default["nDCG@5"]
    assert words["P@1"] == 100
    assert measure() == [default]
    model = open_model(tmp_path, "current")
    lines = (telling / "dataset" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    answers = model.predict([json.loads(line)["text"] for line in lines], top_k=1)
    hits = [answer[0].uid in json.loads(line)["labels"] for answer, line in zip(answers, lines, strict=True)]
    assert default["P@1"] == pytest.approx(100 * np.mean(hits))


def test_auto_leaves_out_an_index_without_a_certain_gain(
    tiny_run: Path, quick_export: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = encode(write_dataset(tmp_path / "dataset", telling=False), tiny_run, tmp_path / "run")
    manifest = built_manifest(run, tmp_path / "store")
    assert not manifest.has_lexical_index
    assert manifest.defaults.word_weight == 0
    assert "not kept: the gain is less than two standard errors" in capsys.readouterr().err
    kept = built_manifest(run, tmp_path / "store", lexical="on")
    assert kept.has_lexical_index
    assert kept.defaults.word_weight == 0


def test_off_writes_no_index_and_evaluate_then_refuses_a_word_weight(
    telling: Path, quick_export: None, tmp_path: Path
) -> None:
    assert not built_manifest(telling / "run", tmp_path, lexical="off").has_lexical_index
    settings = EvaluateSettings(dataset=telling / "dataset", store=tmp_path, word_weight=[0.1])
    with pytest.raises(BuildError, match=r"--word-weight: version .* has no lexical index; build one with"):
        evaluate(settings)
    (row,) = evaluate(settings.model_copy(update={"word_weight": []})).rows
    assert "word_weight" not in row


def test_a_query_is_left_out_of_the_words_when_its_weight_is_tuned(tiny_run: Path, tmp_path: Path) -> None:
    """Each text has words of its own only, so words find nothing once the text is left out."""
    dataset = write_dataset(tmp_path / "dataset", telling=False)
    rows = [json.loads(line) for line in (dataset / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    changed = [row | {"text": f"only{nth} {nth}text"} for nth, row in enumerate(rows)]
    (dataset / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    run = encode(dataset, tiny_run, tmp_path / "run")
    memory = open_memory(run / "memory")
    folder = tmp_path / "words"
    folder.mkdir()
    assert write_lexical(memory, folder, run, "on")[0] == 0
    gain = measure_gain(memory, folder, run)
    assert gain.before == gain.after
    assert not gain.certain


def test_filtered_labels_are_no_answers_when_the_weight_is_tuned(telling: Path, tmp_path: Path) -> None:
    """Words alone find the true label of each text. If all other labels are filtered, the vectors find it too."""
    memory, run = open_memory(telling / "run" / "memory"), telling / "run"
    write_lexical(memory, tmp_path, run, "on")
    assert measure_gain(memory, tmp_path, run).before < 100
    others = [[row, label] for row, own in enumerate(memory.value_indices) for label in range(LABELS) if label != own]
    filtered = dataclasses.replace(memory, filtered_pairs=np.array(others))
    gain = measure_gain(filtered, tmp_path, run)
    assert gain.before == gain.after == 100


def test_memory_without_labelled_instances_has_nothing_to_tune_on(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_dataset(tmp_path / "dataset", telling=True)
    rows = [json.loads(line) for line in (dataset / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps(row | {"labels": []}) + "\n" for row in rows]
    (dataset / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    run = encode(dataset, tiny_run, tmp_path / "run")
    for lexical in ("auto", "on"):
        folder = tmp_path / lexical
        folder.mkdir()
        assert write_lexical(open_memory(run / "memory"), folder, run, lexical) == (0, {})  # type: ignore[arg-type]
    assert "no instance with labels was held out" in capsys.readouterr().err
