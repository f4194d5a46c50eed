"""`recollect rank`: which rankers are kept, which instances are queries, and how builds treat rankers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.core.errors import BundleError, QueryError
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError, NothingToRank
from recollect.index_builder.reranker.artefact import read_held_out
from recollect.index_builder.settings import BuildSettings
from recollect.model import open_model
from recollect.trainer.held_out import ALL, HeldOutTexts
from recollect.trainer.memory.left_out import choose_queries
from recollect.trainer.memory.memory import open_memory, read_texts, write_defaults
from tests.index_builder.reranker.conftest import NAMES, RankedRun
from tests.processes import copy_store
from tests.service.stores import add_version
from tests.trainer.helpers import random_sets, random_units
from tests.trainer.test_tune import make_run


def run_copy(ranked: RankedRun, folder: Path) -> Path:
    return Path(shutil.copytree(ranked.run, folder / "run"))


def refused(run: Path, folder: Path, **flags: str) -> str:
    with pytest.raises(BuildError) as error:
        build(BuildSettings(run=run, store=folder / "store", index="flat", **flags))  # type: ignore[arg-type]
    return str(error.value)


def test_a_ranker_that_helps_is_kept_with_its_report(ranked: RankedRun) -> None:
    folder = ranked.run / "memory" / "ranker"
    report = json.loads((folder / "report.json").read_text())
    assert report["kept"]
    assert report["queries"] == 150
    gains = {gain["name"]: gain["ranker"] - gain["votes"] for gain in report["gains"]}
    assert gains["P@1"] > 5
    assert [gain["name"] for gain in report["recall@5_by_frequency"]] == ["tail", "extreme tail"]
    held_out = read_held_out(open_memory(ranked.run / "memory"))
    assert held_out.logit.shape == (150, 100)
    assert (np.diff(np.where(np.isfinite(held_out.logit), held_out.logit, -1e9)) <= 0).all()


def test_a_ranker_that_does_not_help_is_removed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = make_run(tmp_path, random_units(rng, 280, 4), random_sets(rng, 250, 30))  # keys tell nothing about labels
    folder = run / "memory" / "ranker"
    folder.mkdir()
    (folder / "ranker.json").write_text("the ranker of an earlier run")
    result = recollect.rank(run, threads=1)
    assert not result["kept"]
    assert {path.name for path in folder.iterdir()} == {"report.json"}


def test_ranker_is_fitted_to_held_out_instances_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = make_run(tmp_path, random_units(rng, 330, 4), random_sets(rng, 300, 30))
    held_out = record_training(run, fraction=0.5)
    memory = open_memory(run / "memory")
    texts = list(read_texts(run / "memory" / "instances.jsonl"))
    expected = np.flatnonzero(held_out.mask(texts, 300) & (np.diff(memory.value_indptr) > 0))
    assert recollect.rank(run, threads=1)["queries"] == len(expected) < 150
    assert choose_queries(memory, run, 4_000, seed=0).tolist() == expected.tolist()
    assert len(choose_queries(memory, run, 105, seed=0)) == 105


def test_training_that_held_out_no_texts_gives_neither_votes_by_words_nor_probabilities(
    tiny_run: Path, quick_export: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    record_training(run, fraction=0)
    version = build(BuildSettings(run=run, store=tmp_path / "store", index="flat"))
    said = capsys.readouterr().err
    assert "lexical: no votes by words, because no instance with labels was held out; train on more texts" in said
    assert "probabilities: none, because the training held out 0 texts with labels" in said
    manifest = open_model(tmp_path / "store", version).manifest
    assert not manifest.has_lexical_index
    assert manifest.probabilities is None


def test_too_few_held_out_instances_get_no_ranker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    run = make_run(tmp_path, random_units(rng, 330, 4), random_sets(rng, 300, 30))
    record_training(run, fraction=0.1)
    with pytest.raises(
        NothingToRank, match=r"needs at least 100 instances .* held out, found \d\d; train on more texts"
    ):
        recollect.rank(run, threads=1)
    recollect.tune(run, rank="auto")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "a ranker needs" in line]
    assert line.startswith("rank: none; ")
    assert not (run / "memory" / "ranker").exists()


def record_training(run: Path, fraction: float) -> HeldOutTexts:
    """Record that the encoder of a run has learnt from all texts but a share."""
    memory, header = open_memory(run / "memory"), run / "memory" / "memory.json"
    texts, labelled = read_texts(run / "memory" / "instances.jsonl"), np.diff(memory.value_indptr) > 0
    held_out = HeldOutTexts.choose(texts, labelled, fraction, 3, ALL)
    saved = json.loads(header.read_text())
    saved["encoder"]["held_out"] = held_out.as_json()
    header.write_text(json.dumps(saved))
    return held_out


def test_a_version_with_a_ranker_orders_by_probability(ranked: RankedRun) -> None:
    model = open_model(ranked.store)
    assert model.manifest.has_ranker
    assert model.manifest.has_lexical_index
    assert model.manifest.defaults.order == "probability"
    first = [model.predict(f"{name} unlike {NAMES[nth - 1]}", top_k=3) for nth, name in enumerate(NAMES)]
    assert [labels[0].uid for labels in first] == NAMES


def test_a_ranker_that_hurts_rare_labels_is_not_the_default_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All instances have one frequent label, which is far from all keys, and a rare label, which is near."""
    rng = np.random.default_rng(0)
    instances, rare, dim = 600, 60, 16
    label = rng.integers(rare, size=instances)
    label_keys = random_units(rng, rare + 1, dim)
    keys = label_keys[label] + rng.normal(size=(instances, dim)) / 4
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    sets = [{int(own), rare} for own in label]
    run = make_run(tmp_path, np.concatenate([keys, label_keys]).astype(np.float32), sets)
    memory = open_memory(run / "memory")
    write_defaults(memory.folder, memory.plan, {**memory.defaults, "lambda": 0.0})  # label keys alone vote
    report = recollect.rank(run, threads=1)
    gains = {gain["name"]: gain for gain in report["gains"]}
    votes, ranker, macro = (
        {name: gain[order] for name, gain in gains.items()} for order in ("votes", "ranker", "macro")
    )
    assert report["kept"]
    assert ranker["nDCG@5"] > votes["nDCG@5"]
    assert ranker["PSP@1"] < votes["PSP@1"] - 3
    assert (report["order"], report["tail_weight"] > 0) == ("macro", True)
    assert macro["PSP@1"] >= votes["PSP@1"] - 3
    assert macro["nDCG@5"] > votes["nDCG@5"]
    assert recollect.main(["rank", str(run), "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "default order: macro, because PSP@1 of probability is " in said
    assert "macro F1@5 " in said
    assert "coverage@5 " in said


@pytest.mark.parametrize("report", [{}, {"order": "score", "tail_weight": 0.1}, {"order": "macro", "tail_weight": 0.2}])
def test_a_build_takes_the_default_order_of_the_ranker(
    ranked: RankedRun, tmp_path: Path, quick_road_export: None, report: dict[str, object]
) -> None:
    run = run_copy(ranked, tmp_path)
    path = run / "memory" / "ranker" / "report.json"
    whole = json.loads(path.read_text())
    assert whole.pop("order") == "probability"
    assert 0 < whole.pop("tail_weight") <= 1
    path.write_text(json.dumps(whole | report))
    version = build(BuildSettings(run=run, store=tmp_path / "store", index="flat"))
    model = open_model(tmp_path / "store", version)
    defaults = model.manifest.defaults
    assert defaults.order == report.get("order", "probability")  # of a release without the order macro
    assert defaults.tail_weight == report.get("tail_weight")
    usual, assigned = model.predict("amber instead of basil"), model.predict("amber instead of basil", assign=True)
    assert (usual[0].probability is None) == (defaults.order == "score")
    assert assigned[0].probability is not None
    if defaults.order != "probability":
        path.write_text(json.dumps(whole | {"order": "alphabet"}))
        assert "expected the default order, found another file; run `recollect rank` again" in refused(run, tmp_path)


def test_a_ranker_without_probabilities_orders_labels_by_default(ranked: RankedRun, tmp_path: Path) -> None:
    def change(_: Path, manifest: dict[str, Any]) -> None:
        manifest["probabilities"] = None

    store = copy_store(ranked.store, tmp_path / "store")
    model = open_model(store, add_version(store, ranked.version, "none", change))
    expected = open_model(ranked.store).predict("amber instead of basil")
    assert [label.uid for label in model.predict("amber instead of basil")] == [label.uid for label in expected]
    with pytest.raises(QueryError, match=r"^order: version none gives no probabilities"):
        model.predict("amber", order="probability")


def test_a_ranker_of_other_defaults_is_refused(ranked: RankedRun, tmp_path: Path) -> None:
    run = run_copy(ranked, tmp_path)
    memory = open_memory(run / "memory")
    write_defaults(memory.folder, memory.plan, {**memory.defaults, "lambda": 0.123})
    message = refused(run, tmp_path)
    assert "found one that differs in lambda; run `recollect rank` again" in message


def test_a_damaged_ranker_is_refused(ranked: RankedRun, tmp_path: Path) -> None:
    run = run_copy(ranked, tmp_path)
    (run / "memory" / "ranker" / "ranker.json").write_text("{}")
    with pytest.raises(BundleError, match=r"ranker.json: expected a ranker of format_version 1, found"):
        build(BuildSettings(run=run, store=tmp_path / "store"))
    assert not list((tmp_path / "store").glob("bundles/*"))


def test_a_ranker_with_words_needs_the_lexical_index(ranked: RankedRun, tmp_path: Path) -> None:
    assert "needs the words that texts share" in refused(ranked.run, tmp_path, lexical="off")
