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
from recollect.trainer.clustering import balanced_clusters
from recollect.trainer.distributed import ALONE
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import TokenTable, VectorTable
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.memory.memory import DEFAULTS, open_memory
from recollect.trainer.metrics import propensity_weights
from recollect.trainer.randomness import Purpose, generator
from recollect.trainer.recipe import Recipe
from recollect.trainer.sharded import Sharded
from recollect.trainer.train_settings import TrainSettings
from recollect.trainer.training import run_log
from recollect.trainer.training import train as loop
from recollect.trainer.training.negatives import mine
from recollect.trainer.training.validation import Validation
from tests.trainer.conftest import load
from tests.trainer.helpers import files, label_sets, random_units
from tests.trainer.runs import LEFT, Train, metrics, results, texts, training, weights

INSTANCES, STEPS_PER_EPOCH = 60, 6


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a line of `metrics.jsonl` for every step."""
    monkeypatch.setattr(run_log, "_SECONDS_BETWEEN_LINES", 0)


class TestTraining:
    @pytest.mark.usefixtures("every_step")
    # Other tests train the other methods: by their losses, and served by a real server.
    @pytest.mark.parametrize(("method", "what"), [("rae", "full"), ("dexml", "adapter")])
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

    def test_training_stores_its_recipe_and_its_result(self, train: Train, run_folder: Path) -> None:
        outcome = train("--train", "adapter", "--seed", 5)
        saved = training(run_folder)
        assert saved["done"]
        assert (saved["recipe"]["method"], saved["recipe"]["train"], saved["recipe"]["seed"]) == ("rae", "adapter", 5)
        assert saved["progress"]["step"] == saved["recipe"]["steps"] == 3 * STEPS_PER_EPOCH
        scores = metrics(run_folder, "validation_ndcg_5")
        assert list(scores) == [0, 6, 12, 18]
        best = max(scores, key=lambda step: (scores[step], step))
        assert (saved["progress"]["best"], saved["progress"]["best_step"]) == (scores[best], best)
        assert f"train: best after {best} of 18 steps, validation nDCG@5 {scores[best]:.2f}" in outcome.err
        assert re.search(r"^train: .*optimizer \d+%.*; peak memory [\d,]{3,} MiB$", outcome.err, re.MULTILINE)
        assert list(metrics(run_folder, "loss"))[-1] == 18

    def test_training_keeps_the_best_checkpoint_and_the_later_one_of_two_with_equal_scores(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(scores: list[float], *more: object) -> tuple[str, dict[str, torch.Tensor]]:
            following = iter(scores)
            monkeypatch.setattr(Validation, "score", lambda *_: next(following))
            outcome = train("--max-steps", 9, "--validate-every", 3, "--overwrite", *more)
            assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == (
                open_memory(run_folder / "memory").plan.encoder_sha256
            )
            return outcome.err, weights(run_folder)

        kept = {}
        for best, scores in ((3, [30.0, 30.0, 10.0, 20.0]), (6, [1.0, 2.0, 3.0, 2.0]), (9, [1.0, 2.0, 3.0, 4.0])):
            printed, kept[best] = run(scores)
            assert f"train: best after {best} of 9 steps, validation nDCG@5 {max(scores):.2f}" in printed
            assert training(run_folder)["progress"]["best_step"] == best
        for first, second in ((3, 6), (6, 9)):
            assert any(not torch.equal(kept[first][name], kept[second][name]) for name in kept[first])

    def test_training_without_improvement_keeps_the_encoder_from_which_it_started(
        self, train: Train, run_folder: Path, tiny_bert: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scores: Iterator[float] = iter([50.0, 49.0, 49.0, 0.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        assert "best after 0 of 18 steps" in train("--train", "full").err
        assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == encoder_digest(
            load(tiny_bert.folder)
        )

    def test_validate_every_sets_the_steps_between_two_validations(self, train: Train, run_folder: Path) -> None:
        assert train("--max-steps", 8, "--validate-every", 3).status == 0
        assert list(metrics(run_folder, "validation_ndcg_5")) == [0, 3, 6, 8]

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

    def test_training_can_start_from_a_checkpoint_and_its_adapter(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train("--label-inputs", "text")
        second = run_folder.with_name("second")
        scores = iter([2.0, 1.0])  # no later checkpoint is as good as the first
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
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

    def test_only_new_and_changed_texts_are_encoded(
        self, train: Train, run_folder: Path, vectors: Path, changed: Path, encoded: list[str]
    ) -> None:
        what = ["--train", "adapter", "--max-steps", 2]
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

    def test_vectors_of_another_encoder_are_refused(
        self, train: Train, run_folder: Path, vectors: Path, tiny_distilbert: Any
    ) -> None:
        message = self.refused(train, run_folder, "--vectors", vectors, "--encoder", tiny_distilbert.folder)
        assert f"--vectors {vectors}: expected float32 keys of this encoder" in message
        assert "found a memory that differs in encoder_sha256; omit the flag" in message


def test_damaged_memory_of_a_finished_training_is_written_again_without_training(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--train", "full", "--max-steps", 1]
    train(*few)
    before = files(run_folder)
    (run_folder / "memory" / "keys.npy").write_bytes(before["memory/keys.npy"][:-2])
    monkeypatch.setattr(loop.Objective, "backward", lambda *_: pytest.fail("nothing should be trained"))
    outcome = train(*few)
    assert outcome.status == 0
    assert f"{run_folder}/memory: damaged; writing it again" in outcome.err
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

    def test_each_group_of_weights_has_its_own_learning_rate_and_long_gradients_are_clipped(self) -> None:
        model = VectorDualEncoder(3, Adapter(3, 2), Prototypes(3, 5, ("text", "free"), 2))
        learner = loop.Learner(model, loop._optimizer(model, recipe(train="full")), "cpu")
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 100.0)
        count = sum(weight.numel() for weight in model.parameters())
        assert loop._clip(model, 3.0, ALONE) == pytest.approx(100 * math.sqrt(count))
        loop._take_step(learner.optimizer, 0.25)
        assert {(group["rate_factor"], group["lr"]) for group in learner.optimizer.param_groups} == {
            (1, 0.25),
            (2, 0.5),
            (10, 2.5),
        }
        assert all(weight.grad is None for weight in model.parameters())
        moments = [state["exp_avg"] for state in learner.optimizer.state.values()]
        length = math.sqrt(sum(float((moment / 0.1).square().sum()) for moment in moments))
        assert length == pytest.approx(3, rel=1e-4)

    def test_given_decay_and_rates_of_the_head_replace_the_defaults(self) -> None:
        model = VectorDualEncoder(3, Adapter(3, 2), Prototypes(3, 5, ("text", "free"), 2))
        rates = {"learning_rate": 1e-4, "head_learning_rate": 5e-4, "table_learning_rate": 3e-4}
        found = {
            (round(factor, 9), decay)
            for factor, decay in self.groups(model, method="prime", train="full", weight_decay=0.05, **rates).values()
        }
        assert found == {(1, 0), (1, 0.05), (5, 0), (5, 0.05), (3, 0)}

    def test_table_with_a_vector_for_each_label_has_weight_decay(self) -> None:
        model = VectorDualEncoder(3, head=Classifier(3, 5))
        assert isinstance(model.head, Classifier)
        groups = self.groups(model, method="unidec", train="full", weight_decay=0.05)
        assert groups[id(model.head.weights)] == (10, 0.05)


def test_unidec_mines_and_clusters_by_its_dual_encoder_alone(tmp_path: Path) -> None:
    rng, count = np.random.default_rng(3), 40
    instances, labels = random_units(rng, count), random_units(rng, count)
    sets, nothing = label_sets([{row} for row in range(count)]), label_sets([set()] * count)
    texts = VectorTable(torch.from_numpy(instances)), VectorTable(torch.from_numpy(labels), "labels")
    validation = Validation(np.zeros(count, dtype=bool), sets, count, "cpu", nothing)
    head = Classifier(instances.shape[1], count)
    task = loop.Task(VectorDualEncoder(instances.shape[1], head=head), *texts, sets, nothing, validation, lambda: None)
    settings = TrainSettings(dataset=Path("d"), out=tmp_path, method="unidec", max_steps=1, batch_size=10, mine_top=6)
    plan = Recipe.of(settings, {}, "", "", instances=count, labels=count, device="cpu")
    loop.train(task, plan, tmp_path, ALONE, run_log.Stopwatch(), save_minutes=0)
    (state,) = (tmp_path / "state").iterdir()

    def mined(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return mine(queries, keys, sets, 6, "exact", "cpu", ALONE).labels.own

    negatives = np.load(state / "negatives.npy")
    np.testing.assert_array_equal(negatives, mined(instances, labels))
    joint = labels + head.weights.detach().numpy()  # at the start, both views of a query are equal
    assert (negatives != mined(instances, joint)).any()
    random = generator(plan.seed, Purpose.CLUSTERS, 0)
    expected = balanced_clusters(Sharded.of(instances), np.arange(count), plan.clusters, random)
    np.testing.assert_array_equal(np.load(state / "clusters.npy"), expected)


def test_positives_are_drawn_with_the_propensities_of_the_dataset() -> None:
    sets = label_sets([{0}, {0, 1}, {0, 2}, {0}, {1}, {0}])
    held_out, nothing = np.array([False] * 5 + [True]), sets.where(np.zeros(6, dtype=bool))
    queries, labels = (TokenTable(np.zeros(n, np.int32), np.arange(n + 1), 0) for n in (6, 3))
    validation = Validation(held_out, sets, 3, "cpu", nothing)
    task = loop.Task(VectorDualEncoder(4), queries, labels, sets, nothing, validation, save_best=lambda: None)
    for propensity in ((0.55, 1.5), (0.6, 2.6)):
        found = loop._label_weights(task, recipe(method="prime", propensity=propensity))
        np.testing.assert_allclose(found, propensity_weights(np.array([4, 2, 1]), 5, *propensity))
    assert loop._label_weights(task, recipe()) is None
