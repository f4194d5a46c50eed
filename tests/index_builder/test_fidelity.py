"""Fidelity of a bundle: how much the exported encoder and the indexes change the quality of its answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from recollect.index_builder import verify
from recollect.index_builder.build import build
from recollect.index_builder.settings import BuildSettings
from recollect.index_builder.verify import METRICS, exact_search, quality_changes
from recollect.service.model import open_model
from recollect.service.predictor.predictor import Predictor
from recollect.service.predictor.searcher import Neighbours
from recollect.trainer.memory.memory import Memory, open_memory


@pytest.fixture(scope="module")
def memory(tiny_run: Path) -> Memory:
    return open_memory(tiny_run / "memory")


@pytest.fixture
def predictor(tiny_run: Path, quick_export: None, tmp_path: Path) -> Predictor:
    version = build(BuildSettings(run=tiny_run, store=tmp_path / "store"))
    return open_model(tmp_path / "store", version).predictor


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_exact_search_uses_only_label_keys_at_lambda_0_and_only_instance_keys_at_lambda_1(
    memory: Memory, lambda_: float
) -> None:
    instances = memory.plan.instances
    voting = memory.keys if 0 < lambda_ < 1 else memory.keys[:instances] if lambda_ else memory.keys[instances:]
    found = exact_search(memory, memory.keys[:5], 7, lambda_)
    similarities = memory.keys[:5].astype(np.float64) @ voting.astype(np.float64).T
    np.testing.assert_allclose(found.similarities, -np.sort(-similarities, axis=1)[:, :7], atol=1e-6)
    assert ((found.keys >= instances) == (lambda_ == 0)).all() or lambda_ == 0.5


def test_exact_indexes_and_full_precision_change_no_metric(memory: Memory, predictor: Predictor) -> None:
    changes = quality_changes(memory, predictor)
    parity = {changes.pop("left_out_mean_cosine"), changes.pop("left_out_worst_cosine")}
    assert all(0.99999 < cosine < 1.00001 for cosine in parity)
    assert set(changes) == {f"{metric}_change_{part}" for metric in METRICS for part in ("precision", "index")}
    assert set(changes.values()) == {0.0}


def test_filtered_labels_of_an_instance_are_no_answers_to_it(
    memory: Memory, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quality(pairs: list[list[int]]) -> dict[str, float]:
        filtered = dataclasses.replace(memory, filtered_pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2))
        rows = np.arange(memory.plan.instances)
        found = exact_search(memory, np.asarray(memory.instance_keys, np.float32), 20, 0.5)
        return verify._quality(filtered, predictor, rows, found)

    true = memory.label_sets.pairs()
    every_wrong_label = np.argwhere(memory.label_sets.to_csr(memory.plan.labels).toarray() == 0)
    assert 0 < quality([])["P@1"] < 100
    assert quality(every_wrong_label.tolist())["P@1"] > quality([])["P@1"]
    assert quality(true.tolist()) == dict.fromkeys(METRICS, 0.0)


def test_change_from_the_encoder_and_change_from_the_index_are_reported_separately(
    memory: Memory, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, search = predictor.encode, predictor.memory.searcher.search

    def encode_badly(texts: list[str]) -> np.ndarray:
        return encode(texts)[::-1]  # each text gets the vector of another text

    def search_badly(*arguments: object) -> object:
        found = search(*arguments)
        nothing = np.full(found.keys.shape, -np.inf, dtype=np.float32)
        return Neighbours(nothing, np.full_like(found.keys, -1))

    monkeypatch.setattr(predictor, "encode", encode_badly)
    changes = quality_changes(memory, predictor)
    assert changes["P@1_change_precision"] != 0 == changes["P@1_change_index"]
    monkeypatch.setattr(predictor, "encode", encode)
    monkeypatch.setattr(predictor.memory.searcher, "search", search_badly)
    changes = quality_changes(memory, predictor)
    assert changes["P@1_change_precision"] == 0 > changes["P@1_change_index"]


def test_own_key_of_each_query_is_left_out_of_its_answer(
    memory: Memory, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    cast = verify.cast_votes

    def watch(found: object, *rest: object) -> object:
        seen.append(found.keys)
        return cast(found, *rest)

    monkeypatch.setattr(verify, "cast_votes", watch)
    quality_changes(memory, predictor)
    own = np.arange(memory.plan.instances)[:, None]  # every instance of this small memory is a query
    assert len(seen) == 3
    for keys in seen:
        assert not (keys == own).any()
        assert ((keys >= 0).sum(axis=1) == min(predictor.manifest.defaults.top_b, memory.plan.keys - 1)).all()
