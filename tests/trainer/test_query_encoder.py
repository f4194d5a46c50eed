"""`--query-encoder static`: distillation, its held-out texts, and the vectors that tuning uses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import TokenBags
from recollect.trainer.enriched import mix
from recollect.trainer.errors import EncoderError, TrainingError
from recollect.trainer.memory.left_out import instance_neighbours, label_neighbours
from recollect.trainer.memory.memory import QUERY_VECTORS, open_memory
from recollect.trainer.static import distil as distillation
from recollect.trainer.static.distil import Lesson, Target, distil
from recollect.trainer.static.pretrained import make_static
from recollect.trainer.static.query_encoder import load_query_encoder
from tests.trainer.conftest import TinyEncoder, load
from tests.trainer.helpers import random_units
from tests.trainer.runs import KILLED, Moment, Train, results, run_recollect, texts, untrained
from tests.trainer.test_tune import random_run

STATIC = ["--query-encoder", "static"]


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((first * second).sum(axis=1).mean())


class TestDistillation:
    """A teacher that is itself a static encoder can be imitated perfectly. The last two texts are those of labels."""

    TRUTH = sparse.csr_array(np.array([[1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [1, 0], [0, 1]], dtype=bool))
    TEXTS = ("quick brown fox", "lazy dog", "red paint", "garden chair", "blue lawn", "fox paint", "dog chair red")

    @pytest.fixture
    def student(self, tiny_bert: TinyEncoder) -> Encoder:
        return make_static(load(tiny_bert.folder), "static", 32, 8, [list(self.TEXTS)])

    @pytest.fixture
    def lesson_of(self, student: Encoder) -> Lesson:
        tokens = TokenBags.of(self.TEXTS, student.tokenizer, 32, student.pad_id)
        vectors = random_units(np.random.default_rng(0), len(self.TEXTS), student.dim)
        return Lesson(tokens, vectors, vectors, self.TRUTH, np.arange(len(self.TEXTS)))

    def test_student_approaches_its_teacher(
        self, student: Encoder, lesson_of: Lesson, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(distillation, "_EPOCHS", 200)
        before = cosine(student.encode(self.TEXTS, 32), lesson_of.vectors)
        assert distil(student.model, lesson_of, 0, "cpu") == 200
        assert cosine(student.encode(self.TEXTS, 32), lesson_of.vectors) > max(0.9, before + 0.5)

    def test_rows_that_the_student_may_not_see_have_no_influence(self, student: Encoder, lesson_of: Lesson) -> None:
        seen, trained = np.array([0, 1, 2, 5, 6]), []
        for others in (lesson_of.vectors, -lesson_of.vectors):
            vectors = others.copy()
            vectors[seen] = lesson_of.vectors[seen]
            untrained = type(student.model.transformer)(student.model.transformer.config)
            learner = student.model.__class__(untrained, student.model.pooler)
            learner.load_state_dict(student.model.state_dict())
            distil(learner, Lesson(lesson_of.texts, vectors, vectors, self.TRUTH, seen), 0, "cpu")
            trained.append(learner.state_dict())
        assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])

    def test_loss_is_the_written_formula(self) -> None:
        rng = np.random.default_rng(1)
        v, t, keys = (random_units(rng, rows, 5).astype(np.float64) for rows in (3, 3, 7))
        true, is_label = np.zeros((3, 7), dtype=bool), np.arange(7) >= 3
        true[0, 3], true[0, 5], true[2, 4] = True, True, True
        false = is_label & ~true

        def softmax(scores: np.ndarray) -> np.ndarray:
            weights: np.ndarray = np.exp(scores / 0.05)
            return weights / weights.sum(axis=1, keepdims=True)

        p, q = softmax(t @ keys.T), softmax(v @ keys.T)
        odds = np.exp(v @ keys.T / 0.05)
        missed = -np.log(odds / (odds + (odds * false).sum(axis=1, keepdims=True)))
        truth = (missed * true).sum(axis=1) / np.array([2, 1, 1])
        expected = (1 - (v * t).sum(axis=1) + (p * np.log(p / q)).sum(axis=1) + distillation._TRUTH * truth).mean()
        vectors, *others = (torch.from_numpy(each).float() for each in (v, t, keys))
        target = Target(*others, torch.from_numpy(true), torch.from_numpy(false))
        assert float(distillation._loss(vectors, target)) == pytest.approx(expected, rel=1e-4)


class TestRun:
    def test_memory_keeps_the_teachers_keys_and_gets_the_students_vectors(
        self, train: Train, run_folder: Path, tmp_path: Path
    ) -> None:
        more = ["--max-steps", 2]
        assert train(*more, *STATIC).status == 0
        assert train(*more, "--out", tmp_path / "plain").status == 0
        assert results(run_folder) == results(tmp_path / "plain")
        memory = open_memory(run_folder / "memory")
        teacher, student = (load_checkpoint(run_folder / name, "cpu") for name in ("checkpoint", "query_encoder"))
        assert student.model.is_static
        assert (student.config.max_length, student.config.label_max_length) == (16, 8)
        assert load_query_encoder(run_folder, memory, teacher).dim == memory.plan.dim
        queries = student.encode(texts(run_folder, "instances.jsonl"), 16)
        np.testing.assert_allclose(memory.queries(slice(None)), queries, atol=1e-5)
        assert cosine(queries, memory.instance_keys) > 0.5

    def test_finished_run_gets_a_query_encoder_and_loses_its_old_tuning(self, train: Train, run_folder: Path) -> None:
        assert train("--max-steps", 2, "--tune", "yes").status == 0
        tuning, before = run_folder / "memory" / "tuning.json", results(run_folder)
        tuned_before = tuning.read_text()
        assert train("--max-steps", 2, *STATIC).status == 0
        assert results(run_folder) == before
        assert not tuning.exists()
        assert train("--max-steps", 2, "--tune", "yes", *STATIC).status == 0
        assert tuning.read_text() != tuned_before

    def test_killed_distillation_starts_again(self, flags: list[object], run_folder: Path, tmp_path: Path) -> None:
        again = [*untrained(flags), *STATIC]
        moment = Moment("recollect.trainer.static.query_encoder._store_vectors")
        assert run_recollect(again, tmp_path / "log", moment) == [KILLED]
        memory = open_memory(run_folder / "memory")
        with pytest.raises(EncoderError, match="run the same `recollect train` again"):
            load_query_encoder(run_folder, memory, load_checkpoint(run_folder / "checkpoint", "cpu"))
        assert run_recollect(again, tmp_path / "log") == [0], (tmp_path / "log").read_text()
        assert open_memory(run_folder / "memory").distilled is not None


class TestHonesty:
    """Tuning and ranking must not measure the student on texts from which it learnt."""

    def test_tuning_is_refused_if_the_student_learnt_from_all_instances(
        self, train: Train, run_folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert train("--epochs", 0, *STATIC, "--validation-fraction", 0).status == 0
        assert recollect.main(["tune", str(run_folder)]) == 2
        assert "expected instances with labels that the training held out, found none" in capfd.readouterr().err

    def test_left_out_query_has_the_students_vector_and_its_key_leaves_the_label_means(self, tmp_path: Path) -> None:
        run = random_run(tmp_path, 3, 30, 6)
        students = random_units(np.random.default_rng(9), 30, 6).astype(np.float32)
        np.save(run / "memory" / QUERY_VECTORS, students)
        memory = open_memory(run / "memory")
        keys, values = np.asarray(memory.instance_keys), memory.label_sets.to_csr(6)
        rows = np.flatnonzero(np.diff(memory.value_indptr))[:5]
        instances, labels = instance_neighbours(memory, rows, 4), label_neighbours(memory, rows, 0.5, 6)
        for place, row in enumerate(rows.tolist()):
            others = np.delete(np.arange(30), row)
            best = others[np.argsort(-(keys[others] @ students[row]), kind="stable")[:4]]
            assert instances.keys[place].tolist() == best.tolist()
            sums = np.stack(
                [keys[others[values[others][:, [label]].toarray()[:, 0] > 0]].sum(axis=0) for label in range(6)]
            )
            exact = mix(memory.keys[30:], sums, 0.5) @ students[row]
            order = np.argsort(labels.keys[place])
            np.testing.assert_allclose(labels.similarities[place][order], exact, atol=1e-5)


class TestRefused:
    def test_static_encoder_needs_no_query_encoder(
        self, train: Train, run_folder: Path, tiny_bert: TinyEncoder, tmp_path: Path
    ) -> None:
        assert train("--epochs", 0, "--encoder", "static", "--static-from", tiny_bert.folder).status == 0
        static = shutil.copytree(run_folder / "checkpoint", tmp_path / "static")
        outcome = train("--encoder", static, "--overwrite", *STATIC)
        assert outcome.status == 2
        assert "--query-encoder static: expected an encoder with a transformer, found the static" in outcome.message
        assert not (run_folder / "query_encoder").exists()

    def test_run_with_a_query_encoder_does_not_lose_it_silently(self, train: Train, run_folder: Path) -> None:
        assert train("--epochs", 0, *STATIC).status == 0
        outcome = train("--epochs", 0)
        assert outcome.status == 2
        assert "expected a run without a query encoder" in outcome.message
        assert train("--epochs", 0, "--overwrite").status == 0
        assert not (run_folder / "query_encoder").exists()
        assert open_memory(run_folder / "memory").distilled is None

    def test_damaged_or_foreign_query_encoder_is_one_clear_error(self, train: Train, run_folder: Path) -> None:
        assert train("--epochs", 0, *STATIC).status == 0
        path = run_folder / "query_encoder" / "distillation.json"
        whole = json.loads(path.read_text())
        memory, encoder = open_memory(run_folder / "memory"), load_checkpoint(run_folder / "checkpoint", "cpu")
        for damaged in ("{", json.dumps(whole | {"teacher_sha256": "other"})):
            path.write_text(damaged)
            with pytest.raises((EncoderError, TrainingError), match="query_encoder.*expected .* found.*; "):
                load_query_encoder(run_folder, memory, encoder)
        shutil.rmtree(run_folder / "query_encoder")
        assert train("--epochs", 0, *STATIC).status == 0
        assert load_query_encoder(run_folder, memory, encoder).model.is_static
