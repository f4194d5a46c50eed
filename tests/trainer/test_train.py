"""`recollect train`: what it learns, and what it writes."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import TokenTable
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.memory.memory import DEFAULTS, open_memory
from recollect.trainer.methods import METHODS
from recollect.trainer.metrics import propensity_weights
from recollect.trainer.recipe import Recipe
from recollect.trainer.train_settings import TrainSettings
from recollect.trainer.training import run_log
from recollect.trainer.training import train as loop
from recollect.trainer.training.validation import Validation
from tests.trainer.conftest import load
from tests.trainer.helpers import files, label_sets
from tests.trainer.runs import LEFT, Train, metrics, results, texts, training, weights

INSTANCES, HELD_OUT, STEPS_PER_EPOCH = 60, 12, 6


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a line of `metrics.jsonl` for every step."""
    monkeypatch.setattr(run_log, "_SECONDS_BETWEEN_LINES", 0)


class TestTraining:
    @pytest.mark.usefixtures("every_step")
    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize("method", METHODS)
    def test_training_lowers_the_loss_and_builds_the_memory_with_the_trained_encoder(
        self, train: Train, run_folder: Path, tiny_bert: Any, method: str, what: str
    ) -> None:
        more = ["--train", what, "--method", method, *(["--label-inputs", "text"] if what == "adapter" else [])]
        outcome = train(*more, "--validation-fraction", 0, "--learning-rate", 2e-3, "--epochs", 6)
        assert (outcome.status, outcome.out) == (0, "")
        assert f"train: {method}, {what}, 48 steps of 8 queries, 0 instances held out" in outcome.err
        assert {path.name for path in run_folder.iterdir()} == LEFT[what]
        losses = list(metrics(run_folder, "loss").values())
        assert len(losses) == 48
        assert np.mean(losses[-8:]) < np.mean(losses[:8])

        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        assert (encoder.model.adapter is not None) == (what == "adapter")
        assert encoder_digest(encoder) == memory.plan.encoder_sha256
        assert encoder_digest(encoder) != encoder_digest(load(tiny_bert.folder))
        assert (encoder_digest(encoder.without_adapter()) == encoder_digest(load(tiny_bert.folder))) == (
            what == "adapter"
        )
        np.testing.assert_allclose(
            memory.instance_keys, encoder.encode(texts(run_folder, "instances.jsonl"), 16), atol=1e-5
        )
        np.testing.assert_allclose(
            memory.keys[INSTANCES:], encoder.encode(texts(run_folder, "labels.jsonl"), 8, side="labels"), atol=1e-5
        )
        assert memory.defaults == DEFAULTS

    @pytest.mark.parametrize("what", ["adapter", "full"])
    def test_training_stores_its_recipe_and_its_result(self, train: Train, run_folder: Path, what: str) -> None:
        outcome = train("--train", what, "--seed", 5)
        saved = training(run_folder)
        assert saved["done"]
        assert (saved["recipe"]["method"], saved["recipe"]["train"], saved["recipe"]["seed"]) == ("rae", what, 5)
        assert saved["progress"]["step"] == saved["recipe"]["steps"] == 3 * STEPS_PER_EPOCH
        scores = metrics(run_folder, "validation_ndcg_5")
        assert list(scores) == [0, 6, 12, 18]
        best = max(scores, key=lambda step: (scores[step], -step))
        assert (saved["progress"]["best"], saved["progress"]["best_step"]) == (scores[best], best)
        assert f"train: best after {best} of 18 steps, validation nDCG@5 {scores[best]:.2f}" in outcome.err
        assert re.search(r"^train: .*optimizer \d+%.*; peak memory [\d,]{3,} MiB$", outcome.err, re.MULTILINE)
        assert list(metrics(run_folder, "loss"))[-1] == 18

    def test_training_keeps_the_best_checkpoint_instead_of_the_last_checkpoint(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scores: Iterator[float] = iter([5.0, 30.0, 10.0, 20.0])
        learnt: list[str] = []

        def score(*_: Any) -> float:
            learnt.append(encoder_digest(encoders[0]))
            return next(scores)

        encoders: list[Encoder] = []
        with_adapter = Encoder.with_adapter

        def recorded(self: Encoder, adapter: Any, head: Any = None) -> Encoder:
            encoder = with_adapter(self, adapter, head)
            if adapter is not None:
                encoders.append(encoder)
            return encoder

        monkeypatch.setattr(Encoder, "with_adapter", recorded)
        monkeypatch.setattr(Validation, "score", score)
        outcome = train()
        assert "train: best after 6 of 18 steps, validation nDCG@5 30.00" in outcome.err
        saved = training(run_folder)["progress"]
        assert (saved["best"], saved["best_step"], saved["step"]) == (30, 6, 18)
        kept = load_checkpoint(run_folder / "checkpoint", "cpu")
        assert encoder_digest(kept) == open_memory(run_folder / "memory").plan.encoder_sha256 == learnt[1]
        assert len(set(learnt)) == 4

    def test_training_without_improvement_keeps_the_encoder_from_which_it_started(
        self, train: Train, run_folder: Path, tiny_bert: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scores: Iterator[float] = iter([50.0, 50.0, 49.0, 0.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        assert "best after 0 of 18 steps" in train("--train", "full").err
        assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == encoder_digest(
            load(tiny_bert.folder)
        )

    def test_held_out_instances_are_in_the_memory_but_not_in_training(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: set[int] = set()
        backward = loop.Objective.backward

        def recorded(self: Any, batch: Any) -> float:
            seen.update(batch.rows.tolist())
            return backward(self, batch)

        monkeypatch.setattr(loop.Objective, "backward", recorded)
        assert f"{HELD_OUT} instances held out" in train("--epochs", 1).err
        assert len(seen) == INSTANCES - HELD_OUT
        assert open_memory(run_folder / "memory").plan.instances == INSTANCES

    def test_training_ends_after_max_steps(self, train: Train, run_folder: Path) -> None:
        train("--max-steps", 8)
        assert training(run_folder)["progress"]["step"] == 8
        assert list(metrics(run_folder, "validation_ndcg_5")) == [0, 6, 8]

    def test_validate_every_sets_the_steps_between_two_validations(self, train: Train, run_folder: Path) -> None:
        assert train("--max-steps", 8, "--validate-every", 3).status == 0
        assert list(metrics(run_folder, "validation_ndcg_5")) == [0, 3, 6, 8]

    def test_equal_seeds_give_equal_weights_and_different_seeds_give_different_weights(
        self, train: Train, run_folder: Path
    ) -> None:
        found = {}
        for name, seed in (("a", 0), ("b", 0), ("c", 1)):
            folder = run_folder.with_name(name)
            train("--out", folder, "--seed", seed, "--validation-fraction", 0, "--max-steps", 6)
            found[name] = results(folder)
        assert found["a"] == found["b"]
        assert found["a"]["adapter.safetensors"] != found["c"]["adapter.safetensors"]

    def test_training_with_small_micro_batches_gives_nearly_equal_weights(
        self, train: Train, run_folder: Path, steady_encoder: Path
    ) -> None:
        few = ["--train", "full", "--encoder", steady_encoder, "--validation-fraction", 0, "--max-steps", 3]
        train(*few)
        train(*few, "--micro-batch", 3, "--out", run_folder.with_name("micro"))
        np.testing.assert_allclose(
            open_memory(run_folder / "memory").keys,
            open_memory(run_folder.with_name("micro") / "memory").keys,
            atol=1e-3,
        )

    @pytest.mark.usefixtures("every_step")
    def test_learning_rate_rises_and_falls(self, train: Train, run_folder: Path) -> None:
        train("--learning-rate", 0.01, "--max-steps", 12, "--epochs", 4)
        rates = list(metrics(run_folder, "learning_rate").values())
        assert rates == pytest.approx([0.005, 0.01] + [0.001 * left for left in range(10, 0, -1)])

    def test_enriched_label_keys_are_used_in_validation_and_stored_in_the_memory(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alphas = []
        score = Validation.score

        def recorded(self: Validation, keys: Any) -> float:
            alphas.append(self.alpha)
            return score(self, keys)

        monkeypatch.setattr(Validation, "score", recorded)
        train("--label-keys", "enriched", "--label-key-alpha", 0.25, "--epochs", 1)
        assert alphas == [0.25, 0.25]
        assert open_memory(run_folder / "memory").defaults == DEFAULTS | {"label_key_alpha": 0.25}

    def test_half_precision_keys_of_the_memory_equal_the_keys_that_the_checkpoint_gives(
        self, train: Train, run_folder: Path
    ) -> None:
        train("--key-dtype", "float16", "--epochs", 1, "--label-inputs", "text")
        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        assert memory.keys.dtype == np.float16
        found = encoder.encode(texts(run_folder, "labels.jsonl"), 8, side="labels")
        np.testing.assert_allclose(memory.keys[INSTANCES:], found, atol=1e-3)

    def test_training_can_start_from_a_checkpoint_and_its_adapter(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train("--validation-fraction", 0, "--label-inputs", "text")
        second = run_folder.with_name("second")
        monkeypatch.setattr(Validation, "score", lambda *_: 1.0)  # no checkpoint is better than the first
        more = ["--encoder", run_folder / "checkpoint", "--out", second, "--max-steps", 1, "--label-inputs", "text"]
        assert train(*more).status == 0
        assert results(second)["adapter.safetensors"] == results(run_folder)["adapter.safetensors"]
        np.testing.assert_array_equal(open_memory(second / "memory").keys, open_memory(run_folder / "memory").keys)

    def test_full_training_of_a_checkpoint_trains_encoder_and_adapter(self, train: Train, run_folder: Path) -> None:
        train("--validation-fraction", 0, "--max-steps", 2, "--label-inputs", "text")
        second = run_folder.with_name("second")
        more = ["--encoder", run_folder / "checkpoint", "--train", "full", "--validation-fraction", 0, "--max-steps", 2]
        assert train(*more, "--out", second).status == 0
        before, after = weights(run_folder), weights(second)
        assert {name for name in before if torch.equal(before[name], after[name])} == {
            name for name in before if name.startswith("pooler.")
        }
        encoder = load_checkpoint(second / "checkpoint", "cpu")
        found = encoder.encode(texts(second, "labels.jsonl"), 8, side="labels")
        np.testing.assert_allclose(open_memory(second / "memory").keys[INSTANCES:], found, atol=1e-5)


class TestVectors:
    @pytest.fixture
    def vectors(self, train: Train, tmp_path: Path) -> Path:
        """The memory folder of the untrained encoder, for the flag --vectors."""
        assert train("--epochs", 0, "--out", tmp_path / "zero").status == 0
        return tmp_path / "zero" / "memory"

    def test_training_with_the_flag_vectors_gives_the_same_adapter_and_encodes_no_text(
        self, train: Train, run_folder: Path, vectors: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = files(vectors)
        train()
        with monkeypatch.context() as context:
            context.setattr(Encoder, "encode", lambda *_: pytest.fail("nothing should be encoded"))
            assert train("--vectors", vectors, "--out", run_folder.with_name("given")).status == 0
        assert results(run_folder.with_name("given")) == results(run_folder)
        assert files(vectors) == before
        assert {path.name for path in run_folder.with_name("given").iterdir()} == LEFT["adapter"] - {"frozen"}

    def refused(self, train: Train, run_folder: Path, *more: object) -> str:
        outcome = train(*more)
        assert (outcome.status, outcome.out) == (2, "")
        assert not run_folder.exists()
        return outcome.message

    @pytest.fixture
    def changed(self, lesson: Path, tmp_path: Path) -> Path:
        """The dataset with two other texts, one more text, another order, and one more label."""
        changed = Path(shutil.copytree(lesson, tmp_path / "changed"))
        rows = (changed / "train.jsonl").read_text("utf-8").splitlines()
        records = [json.loads(row) for row in reversed(rows)]
        for record in records[:2]:
            record["text"] += " anew"
        records.append({"uid": "new", "text": "a new text", "labels": []})
        (changed / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        with (changed / "labels.jsonl").open("a", encoding="utf-8") as labels:
            labels.write(json.dumps({"uid": "new", "text": "a new label"}) + "\n")
        return changed

    @pytest.fixture
    def encoded(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The texts that are encoded from now on."""
        texts: list[str] = []
        encode = Encoder.encode

        def record(self: Encoder, batch: list[str], *more: Any, **named: Any) -> np.ndarray:
            texts.extend(batch)
            return encode(self, batch, *more, **named)

        monkeypatch.setattr(Encoder, "encode", record)
        return texts

    @pytest.mark.parametrize("what", [["--epochs", 0], ["--train", "adapter", "--max-steps", 2]], ids=["0", "adapter"])
    def test_only_new_and_changed_texts_are_encoded(
        self, train: Train, run_folder: Path, vectors: Path, changed: Path, encoded: list[str], what: list[object]
    ) -> None:
        assert train(*what, dataset=changed).status == 0
        encoded.clear()
        outcome = train(*what, "--vectors", vectors.parent, "--out", run_folder.with_name("reused"), dataset=changed)
        assert outcome.status == 0
        assert len(encoded) == 4
        assert all("new" in text for text in encoded)
        assert "texts are unchanged, 4 texts to encode" in outcome.err
        keys = [open_memory(folder / "memory").keys for folder in (run_folder, run_folder.with_name("reused"))]
        np.testing.assert_allclose(*keys, atol=1e-6)

    def test_run_with_an_adapter_keeps_the_vectors_for_a_later_run_that_starts_from_it(
        self, train: Train, run_folder: Path, changed: Path, encoded: list[str]
    ) -> None:
        earlier, grown = run_folder, run_folder.with_name("grown")
        assert train("--train", "adapter", "--max-steps", 2).status == 0
        encoded.clear()
        recollect.train(changed, out=grown, vectors=earlier, from_=earlier, max_steps=1, learning_rate=1e-12)
        assert len(encoded) == 4
        assert all("new" in text for text in encoded)
        keys = load_checkpoint(grown / "checkpoint", "cpu").encode(texts(grown, "instances.jsonl"), 16)
        np.testing.assert_allclose(open_memory(grown / "memory").instance_keys, keys, atol=1e-5)

    def test_labels_are_encoded_again_if_the_encoder_has_an_adapter(
        self, train: Train, run_folder: Path, encoded: list[str]
    ) -> None:
        train("--max-steps", 2)
        encoded.clear()
        more = ["--encoder", run_folder / "checkpoint", "--vectors", run_folder, "--out", run_folder.with_name("again")]
        assert train("--epochs", 0, *more).status == 0
        assert sorted(encoded) == sorted(texts(run_folder, "labels.jsonl"))

    def test_vectors_of_another_encoder_are_refused(
        self, train: Train, run_folder: Path, vectors: Path, tiny_distilbert: Any
    ) -> None:
        message = self.refused(train, run_folder, "--vectors", vectors, "--encoder", tiny_distilbert.folder)
        assert f"--vectors {vectors}: expected float32 keys of this encoder" in message
        assert "found a memory that differs in encoder_sha256; omit the flag" in message

    def test_vectors_of_another_data_type_are_refused(self, train: Train, run_folder: Path, tmp_path: Path) -> None:
        train("--epochs", 0, "--out", tmp_path / "half", "--key-dtype", "float16")
        message = self.refused(train, run_folder, "--vectors", tmp_path / "half" / "memory")
        assert "differs in key_dtype;" in message

    def test_flag_vectors_with_a_missing_folder_is_refused(
        self, train: Train, run_folder: Path, tmp_path: Path
    ) -> None:
        message = self.refused(train, run_folder, "--vectors", tmp_path / "none")
        assert f"{tmp_path / 'none'}: expected a memory, found none" in message

    @pytest.mark.parametrize(
        ("flag", "value", "name"), [("--pooling", "cls", "pooling"), ("--label-max-length", 9, "label_max_length")]
    )
    def test_vectors_that_were_written_with_different_settings_are_refused(
        self, train: Train, run_folder: Path, vectors: Path, flag: str, value: object, name: str
    ) -> None:
        message = self.refused(train, run_folder, "--vectors", vectors, flag, value)
        assert (
            f"found a memory that differs in {name}; omit the flag, or write such a memory with --epochs 0" in message
        )

    @pytest.mark.parametrize("overwrite", [["--overwrite"], []])
    def test_vectors_that_the_run_would_remove_are_refused(
        self, train: Train, vectors: Path, overwrite: list[str]
    ) -> None:
        before = files(vectors.parent)
        for flag in (["--vectors", vectors], ["--encoder", vectors.parent / "checkpoint"]):
            outcome = train(*flag, "--out", vectors.parent, *overwrite)
            assert outcome.status == 2
            expected = f"expected a folder outside --out {vectors.parent}, which this command writes"
            assert f"{flag[0]} {flag[1]}: {expected}" in outcome.message
            assert files(vectors.parent) == before


class TestDamagedMemory:
    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize("name", ["memory.json", "keys.npy", "value_indices.npy"])
    def test_damaged_memory_of_a_finished_training_is_written_again_without_training(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str
    ) -> None:
        few = ["--train", what, "--max-steps", 1]
        train(*few)
        before = files(run_folder)
        (run_folder / "memory" / name).write_bytes(before[f"memory/{name}"][:-2])
        monkeypatch.setattr(loop.Objective, "backward", lambda *_: pytest.fail("nothing should be trained"))
        outcome = train(*few)
        assert outcome.status == 0
        assert f"{run_folder}/memory: damaged; writing it again" in outcome.err
        assert files(run_folder) == before

    def test_memory_that_differs_from_the_settings_of_the_training_is_refused(
        self, train: Train, run_folder: Path
    ) -> None:
        train("--max-steps", 1)
        before = files(run_folder)
        outcome = train("--max-steps", 1, "--key-dtype", "float16")
        assert outcome.status == 2
        assert "found one that differs in key_dtype" in outcome.message
        assert files(run_folder) == before


def recipe(**given: Any) -> Recipe:
    settings = TrainSettings(dataset=Path("data"), out=Path("run"), **given)
    return Recipe.of(settings, {}, "", "", instances=6, labels=40, device="cpu")


class TestOptimizer:
    def groups(self, model: DualEncoder, **given: Any) -> dict[int, tuple[float, float]]:
        """Return the rate factor and the weight decay of each weight."""
        groups = loop._optimizer(model, recipe(**given)).param_groups
        return {
            id(weight): (group["rate_factor"], group["weight_decay"]) for group in groups for weight in group["params"]
        }

    def test_only_weights_that_are_matrices_have_weight_decay(self, tiny_bert: Any) -> None:
        model = load(tiny_bert.folder).model
        groups = self.groups(model.trainable(), train="full")
        found = {name: groups.get(id(weight)) for name, weight in model.named_parameters()}
        for name, group in found.items():
            plain = name.endswith("bias") or "LayerNorm" in name
            assert group == (None if ".pooler." in name else (1, 0) if plain else (1, 0.01)), name
        assert set(found.values()) == {None, (1, 0), (1, 0.01)}

    def test_head_has_a_higher_learning_rate_than_the_encoder_and_its_lookup_tables_have_no_weight_decay(
        self, tiny_bert: Any
    ) -> None:
        head = Prototypes(32, 40, ("text", "free"), 4)
        model = load(tiny_bert.folder).with_adapter(None, head).model
        groups = self.groups(model.trainable(), train="full")
        assert groups[id(head.free)] == (10, 0)
        assert groups[id(head.layer.linear1.weight)] == (2, 0.01)
        assert groups[id(head.layer.linear1.bias)] == (2, 0)
        assert groups[id(model.transformer.get_input_embeddings().weight)] == (1, 0.01)

    def test_all_weights_above_a_frozen_encoder_have_the_same_learning_rate(self) -> None:
        head = Prototypes(4, 40, ("text", "free"), 4)
        groups = self.groups(VectorDualEncoder(4, Adapter(4, 3), head), method="prime")
        assert groups[id(head.free)] == (1, 0)
        assert {factor for factor, _ in groups.values()} == {1}

    def test_prototypes_without_free_vectors_have_no_lookup_tables_to_train(self) -> None:
        head = Prototypes(4, 40, ("text",), 0)
        assert id(head.free) not in self.groups(VectorDualEncoder(4, None, head), method="prime", prototype="text")

    def test_each_group_of_weights_has_its_own_learning_rate_and_long_gradients_are_clipped(self) -> None:
        model = VectorDualEncoder(3, Adapter(3, 2), Prototypes(3, 5, ("text", "free"), 2))
        learner = loop.Learner(model, loop._optimizer(model, recipe(train="full")), "cpu")
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 100.0)
        count = sum(weight.numel() for weight in model.parameters())
        assert loop._take_step(learner, 0.25) == pytest.approx(100 * math.sqrt(count))
        assert {(group["rate_factor"], group["lr"]) for group in learner.optimizer.param_groups} == {
            (1, 0.25),
            (2, 0.5),
            (10, 2.5),
        }
        assert all(weight.grad is None for weight in model.parameters())
        moments = [state["exp_avg"] for state in learner.optimizer.state.values()]
        length = math.sqrt(sum(float((moment / 0.1).square().sum()) for moment in moments))
        assert length == pytest.approx(1, rel=1e-4)

    def test_frozen_weights_are_not_trained(self) -> None:
        model = VectorDualEncoder(3, adapter := Adapter(3, 2))
        adapter.queries.requires_grad_(False)
        assert self.groups(model).keys() == {id(weight) for weight in adapter.labels.parameters()}


def test_cached_keys_are_freed_before_a_training_step(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    makers, backward = [], loop.Objective.backward
    key_maker = loop.KeyMaker

    def recorded(*arguments: Any) -> Any:
        makers.append(key_maker(*arguments))
        return makers[-1]

    def step(self: Any, batch: Any) -> float:
        assert makers[-1]._cached is None
        return backward(self, batch)

    monkeypatch.setattr(loop, "KeyMaker", recorded)
    monkeypatch.setattr(loop.Objective, "backward", step)
    assert train("--mine-every", 4).status == 0


def test_only_large_batches_use_the_gradient_cache(train: Train, monkeypatch: Any) -> None:
    embedders = []
    embedder = loop._embedder

    def recorded(*arguments: Any) -> Any:
        embedders.append(embedder(*arguments))
        return embedders[-1]

    monkeypatch.setattr(loop, "_embedder", recorded)
    train("--max-steps", 1)
    train("--max-steps", 1, "--micro-batch", 5, "--overwrite")
    monkeypatch.setattr(loop, "kept_tokens", lambda *_: 10)
    train("--max-steps", 1, "--overwrite")
    assert [each.cache for each in embedders] == [False, True, True]
    assert [each.micro_rows for each in embedders] == [2**31, 5, 2**31]


def test_positives_are_drawn_with_the_propensities_of_the_dataset() -> None:
    sets = label_sets([{0}, {0, 1}, {0, 2}, {0}, {1}, {0}])
    held_out, nothing = np.array([False] * 5 + [True]), sets.where(np.zeros(6, dtype=bool))
    queries, labels = (TokenTable(np.zeros(n, np.int32), np.arange(n + 1), 0) for n in (6, 3))
    validation = Validation(held_out, sets, 3, 0.0, "cpu", nothing)
    task = loop.Task(VectorDualEncoder(4), queries, labels, sets, nothing, validation, save_best=lambda: None)
    for propensity in ((0.55, 1.5), (0.6, 2.6)):
        found = loop._label_weights(task, recipe(method="prime", propensity=propensity))
        np.testing.assert_allclose(found, propensity_weights(np.array([4, 2, 1]), 5, *propensity))
    assert loop._label_weights(task, recipe(propensity=(0.6, 2.6))) is None


@pytest.mark.parametrize(
    ("positives", "hard_negatives", "pool"),
    [(1, 2, 6), (2, 2, 8), (0, 2, 14), (9, 2, 14), (9, 0, 10), (0, 50, 40), (1, None, 40)],
    ids=["one drawn", "two drawn", "all", "more than there are", "none mined", "all labels and more", "all labels"],
)
def test_tokens_of_an_average_batch_include_its_queries_and_its_pool(
    positives: int, hard_negatives: int | None, pool: int
) -> None:
    """A batch has two of six queries with 10 tokens and 5 of 40 labels each. A label has 3 tokens."""
    queries, table = (TokenTable(np.zeros(n * of, np.int32), of * np.arange(n + 1), 0) for n, of in ((6, 10), (40, 3)))
    sets = label_sets([range(5 * row, 5 * row + 5) for row in range(6)])
    none_held_out = np.zeros(6, dtype=bool)
    task = loop.Task(
        VectorDualEncoder(4),
        queries,
        table,
        sets,
        sets.where(none_held_out),
        Validation(none_held_out, sets, 40, 0.0, "cpu", sets.where(none_held_out)),
        save_best=lambda: None,
    )
    given = recipe(
        method="dexml" if hard_negatives is None else "rae",
        batch_size=2,
        positives=positives,
        hard_negatives=hard_negatives,
    )
    assert loop._batch_tokens(task, given) == 2 * 10 + 3 * pool


def test_help_of_recollect_train_describes_every_flag_with_its_values_or_its_unit(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        recollect.main(["train", "--help"])
    out = " ".join(capfd.readouterr().out.split())
    for name, field in TrainSettings.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description
        assert len(field.description) <= 120, name
        assert " ".join(field.description.split())[:40] in out, name
        assert name == "dataset" or f"--{name.strip('_').replace('_', '-')}" in out
