"""`recollect tune` against a naive implementation: each query alone, against all other instances, in float64."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

import recollect
from recollect.trainer.data.split import Entries, Split
from recollect.trainer.distributed import ALONE
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.memory.key_sources import AdaptedKeys
from recollect.trainer.memory.memory import DEFAULTS, Memory, MemoryPlan, open_memory, write_defaults
from recollect.trainer.memory.memory_writer import write_memory
from recollect.trainer.memory.tune import Trial, tune
from recollect.trainer.settings import TuneSettings
from tests.trainer.helpers import files, label_sets, random_sets, random_units

A, B = 0.55, 1.5


def entries(kind: str, rows: int) -> Entries:
    strings = pa.array([f"{kind}{row}" for row in range(rows)], type=pa.large_string())
    return Entries(strings, strings)


def make_run(folder: Path, keys: np.ndarray, sets: list[set[int]], key_dtype: Any = "float32") -> Path:
    """Write a run folder whose memory has the given keys of instances and labels."""
    labels, dim = len(keys) - len(sets), keys.shape[1]
    plan = MemoryPlan(len(sets), labels, dim, key_dtype, {}, "", "")
    instances = Split(entries("i", len(sets)), label_sets(sets), np.empty((0, 2), np.int64))
    inputs = VectorTable(torch.from_numpy(keys[len(sets) :]), "labels")
    source = AdaptedKeys(VectorDualEncoder(dim).eval(), keys[: len(sets)], inputs, "cpu")
    write_memory(folder / "memory", plan, entries("l", labels), instances, source, ALONE)
    return folder


def random_run(folder: Path, seed: int, instances: int, labels: int, key_dtype: Any = "float32") -> Path:
    """Write a run folder with random keys.

    Instances have zero to all labels, and some labels have one instance or no instance.
    """
    rng = np.random.default_rng(seed)
    sets = [own - {0, 1} for own in random_sets(rng, instances, labels)]
    sets[0] |= {0}
    return make_run(folder, random_units(rng, instances + labels, 6), sets, key_dtype)


def sets_of(memory: Memory) -> list[set[int]]:
    return [set(row.tolist()) for row in np.split(memory.value_indices, memory.value_indptr[1:-1])]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


class LeftOut(NamedTuple):
    """One query and the memory without it: the other instances, and label keys without the query in their means."""

    similarities: list[float]
    sets: list[set[int]]
    label_similarities: list[float]

    @classmethod
    def of(cls, memory: Memory, row: int, alpha: float) -> LeftOut:
        keys, sets, n = np.asarray(memory.keys, dtype=np.float64), sets_of(memory), memory.plan.instances
        others = [other for other in range(n) if other != row]
        label_keys = []
        for label, text in enumerate(keys[n:]):
            has = [keys[other] for other in others if label in sets[other]]
            label_keys.append(unit((1 - alpha) * text + alpha * unit(np.sum(has, axis=0))) if has and alpha else text)
        query = keys[row]
        return cls([query @ keys[o] for o in others], [sets[o] for o in others], [query @ key for key in label_keys])

    def best(self, lambda_: float, temperature: float, top_b: int, depth: int) -> list[int]:
        found: list[tuple[float, set[int], float]] = []
        if lambda_ > 0:
            found += [(s, own, lambda_) for s, own in zip(self.similarities, self.sets, strict=True)]
        if lambda_ < 1:
            found += [(s, {label}, 1 - lambda_) for label, s in enumerate(self.label_similarities)]
        found = sorted(found, key=lambda key: -key[0])[:top_b]
        votes = [0.0] * len(self.label_similarities)
        for similarity, own, share in found:
            for label in own:
                votes[label] += share * math.exp((similarity - found[0][0]) / temperature)
        ranked = sorted(range(len(votes)), key=lambda label: -votes[label])
        return [label for label in ranked if votes[label] > 0][:depth]


def naive_score(metric: str, predictions: list[list[int]], truth: list[set[int]], counts: list[int], n: int) -> float:
    name, _, depth = metric.partition("@")
    k = int(depth)
    c = (math.log(n) - 1) * (B + 1) ** A
    weights = [1 + c * (count + B) ** -A for count in counts]
    scores, gained, ideal = [], 0.0, 0.0
    for predicted, own in zip(predictions, truth, strict=True):
        right = [label in own for label in predicted]
        gained += sum(weights[label] for label in predicted if label in own)
        ideal += sum(sorted((weights[label] for label in own), reverse=True)[:k])
        if name == "nDCG":
            most = sum(1 / math.log2(place + 2) for place in range(min(k, len(own))))
            scores.append(sum(hit / math.log2(place + 2) for place, hit in enumerate(right)) / most)
        else:
            scores.append(sum(right) / (k if name == "P" else len(own)))
    return 100 * (gained / ideal if name == "PSP" else sum(scores) / len(scores))


def naive(memory: Memory, rows: list[int], metric: str) -> Callable[[Trial], float]:
    sets, k = sets_of(memory), int(metric.partition("@")[2])
    counts = [sum(label in own for own in sets) for label in range(memory.plan.labels)]
    left_out: dict[float, list[LeftOut]] = {}

    def score(trial: Trial) -> float:
        alpha = trial.label_key_alpha
        if alpha not in left_out:
            left_out[alpha] = [LeftOut.of(memory, row, alpha) for row in rows]
        predictions = [query.best(trial.lambda_, trial.temperature, trial.top_b, k) for query in left_out[alpha]]
        return naive_score(metric, predictions, [sets[row] for row in rows], counts, memory.plan.instances)

    return score


def settings(run: Path, **given: Any) -> TuneSettings:
    names = {"lambda_": "lambda", "json_": "json"}
    return TuneSettings(run=run, **{names.get(name, name): value for name, value in given.items()})


def setting(trial: Trial) -> tuple[float, float, int, float]:
    return trial.lambda_, trial.temperature, trial.top_b, trial.label_key_alpha


GRID: dict[str, Any] = {
    "lambda_": [0, 0.3, 1],
    "temperature": [0.1, 0.4],
    "top_b": [1, 4, 9, 300],
    "label_key_alpha": [0, 0.5, 0.9],
}


@pytest.mark.parametrize(
    ("metric", "seed", "instances", "labels"),
    [("P@1", 0, 30, 9), ("nDCG@5", 1, 18, 40), ("PSP@5", 0, 30, 9), ("R@10", 2, 3, 5)],
)
def test_scores_equal_a_naive_leave_one_out_implementation(
    tmp_path: Path, metric: str, seed: int, instances: int, labels: int
) -> None:
    memory = open_memory(random_run(tmp_path, seed, instances, labels) / "memory")
    tuning = tune(settings(tmp_path, metric=metric, **GRID))
    rows = [row for row, own in enumerate(sets_of(memory)) if own]
    expected = naive(memory, rows, metric)
    assert (tuning.metric, tuning.queries) == (metric, len(rows))
    assert len(tuning.trials) == len({setting(trial) for trial in tuning.trials}) == 3 * (3 * 2 * 4 + 1)
    for trial in tuning.trials:
        assert trial.score == pytest.approx(expected(trial), abs=1e-6), trial


@pytest.mark.parametrize("top_b", [1, 5])
def test_scores_equal_the_naive_implementation_for_small_b_and_many_labels(tmp_path: Path, top_b: int) -> None:
    rng = np.random.default_rng(0)
    sets = [set(rng.choice(80, size=3, replace=False).tolist()) for _ in range(60)]
    memory = open_memory(make_run(tmp_path, random_units(rng, 140, 4), sets) / "memory")
    own = DEFAULTS | {"top_b": top_b}
    write_defaults(memory.folder, memory.plan, own)
    tuning = tune(settings(tmp_path, metric="R@10", lambda_=[0], top_b=[top_b], label_key_alpha=[0.3, 0.6, 0.9]))
    expected = naive(memory, list(range(60)), "R@10")
    for trial in tuning.trials:
        assert trial.score == pytest.approx(expected(trial), abs=1e-6), trial


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_scores_of_half_precision_keys_equal_the_naive_implementation(tmp_path: Path, alpha: float) -> None:
    rng = np.random.default_rng(4)
    # At alpha = 1, two labels of the same instances have equal votes, and rounding would decide their order. So any two
    # labels differ in at least two instances: they still differ if the query is left out.
    sets = [set(rng.choice(8, size=3, replace=False).tolist()) for _ in range(20)]
    instances = [{row for row, own in enumerate(sets) if label in own} for label in range(8)]
    assert min(len(first ^ second) for first, second in itertools.combinations(instances, 2)) >= 2
    memory = open_memory(make_run(tmp_path, random_units(rng, 28, 6), sets, "float16") / "memory")
    tuning = tune(settings(tmp_path, lambda_=[0.4], temperature=[0.1], top_b=[400], label_key_alpha=[alpha]))
    expected = naive(memory, list(range(20)), "nDCG@5")
    for trial in tuning.trials:
        assert trial.score == pytest.approx(expected(trial), abs=1e-6), trial


class TestResult:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        return random_run(tmp_path / "run", 5, 30, 9)

    def test_tuning_changes_only_the_defaults_of_the_memory(self, run: Path) -> None:
        before = files(run)
        tuning = tune(settings(run))
        memory = open_memory(run / "memory")
        best = tuning.best
        assert memory.defaults == {
            "lambda": best.lambda_,
            "temperature": best.temperature,
            "top_b": best.top_b,
            "label_key_alpha": best.label_key_alpha,
        }
        assert memory.defaults != DEFAULTS
        after = files(run)
        assert set(after) - set(before) == {"memory/tuning.json"}
        assert {name for name in before if before[name] != after[name]} == {"memory/memory.json"}
        saved = [json.loads(each["memory/memory.json"]) for each in (before, after)]
        assert saved[0] | {"defaults": memory.defaults} == saved[1]

    def test_tuning_json_contains_all_trials_best_first(self, run: Path) -> None:
        tuning = tune(settings(run, **GRID))
        saved = json.loads((run / "memory" / "tuning.json").read_text())
        assert saved == json.loads(json.dumps(tuning.as_json()))
        assert saved["best"] == saved["trials"][0]
        assert set(saved["best"]) == {"lambda", "temperature", "top_b", "label_key_alpha", "score"}
        scores = [trial["score"] for trial in saved["trials"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 75
        assert saved["before"] in saved["trials"]
        assert saved["before"] | {"score": 0} == DEFAULTS | {"score": 0}

    def test_defaults_stay_if_all_settings_have_equal_scores(self, tmp_path: Path) -> None:
        keys = np.eye(3, dtype=np.float32)[[0, 0, 0, 1]]  # every setting is correct
        tuning = tune(settings(make_run(tmp_path, keys, [{0}, {0}])))
        assert {trial.score for trial in tuning.trials} == {tuning.before.score}
        assert setting(tuning.best) == setting(tuning.before) == tuple(DEFAULTS.values())
        assert {0.01, 0.02} <= {trial.lambda_ for trial in tuning.trials}

    @pytest.mark.parametrize(
        # Instances win 2 queries of each better pair and lose 1 of each worse pair: 100 times these gains per query.
        # 1, 1, -1, 0: mean 25, standard error 48. Three better pairs and a worse one: mean 62.5, standard error 26.
        ("better", "worse", "gain", "chosen"),
        [(1, 1, 25, 0), (3, 1, 62.5, 1)],
    )
    def test_setting_wins_only_if_its_gain_is_larger_than_its_standard_error(
        self, tmp_path: Path, better: int, worse: int, gain: float, chosen: float
    ) -> None:
        pairs = better + worse
        units = np.eye(2 * pairs, dtype=np.float32)
        here, far = units[:pairs], units[pairs:]
        instances = np.repeat(here, 2, axis=0)
        # Label p has the key of pair p, and label pairs + p another key. A better pair has the second label twice. A
        # worse pair has each label once.
        sets = [{pair if pair >= better and not second else pairs + pair} for pair in range(pairs) for second in (0, 1)]
        run = make_run(tmp_path, np.concatenate([instances, here, far]), sets)
        write_defaults(run / "memory", open_memory(run / "memory").plan, DEFAULTS | {"lambda": 0})
        tuning = tune(settings(run, metric="P@1", lambda_=[1], temperature=[0.04], top_b=[200], label_key_alpha=[0]))
        by_lambda = {trial.lambda_: trial.score for trial in tuning.trials}
        assert by_lambda[1] - by_lambda[0] == pytest.approx(gain)
        assert tuning.best.lambda_ == open_memory(run / "memory").defaults["lambda"] == chosen


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        return random_run(tmp_path / "run", 5, 20, 6)

    def test_tune_prints_only_the_table_to_stdout(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert recollect.main(["tune", str(run), "--lambda", "0,.5", "--metric", "P@1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["lambda", "tau", "b", "alpha", "P@1"]
        assert [line.split()[0] for line in lines[1:3]] == ["before", "best"]
        assert len(lines) == 3 + 2 + 4 + 1
        assert "on the 20 held-out texts that chose it" in lines[-1] or lines[-1].startswith("kept: lambda 0.5, ")

    def test_tune_ends_with_its_decision_and_the_gain(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        units = np.eye(2, dtype=np.float32)
        # Both instances of label 0 have one key, and the text of label 0 has another one: only instances find it.
        run = make_run(tmp_path, np.concatenate([units[[0, 0]], units[1:], units[:1]]), [{0}, {0}])
        write_defaults(run / "memory", open_memory(run / "memory").plan, DEFAULTS | {"lambda": 0})
        flags = "--metric", "P@1", "--temperature", ".04", "--top-b", "200", "--label-key-alpha", "0"
        assert recollect.main(["tune", str(run), "--lambda", "1", *flags]) == 0
        decision = capsys.readouterr().out.splitlines()[-1]
        assert decision == (
            "chosen: lambda 1 (was 0), tau 0.04, b 200, alpha 0; P@1 gains +100.00 (standard error 0.00) on the 2 "
            "held-out texts that chose it"
        )
        assert recollect.main(["tune", str(run), "--lambda", "1", *flags]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == (
            "kept: lambda 1, tau 0.04, b 200, alpha 0; no other setting gains more than its standard error on 2 "
            "held-out texts"
        )

    def test_tune_prints_json_with_the_flag_json(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert recollect.main(["tune", str(run), "--json", "--temperature", ".05"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed == json.loads((run / "memory" / "tuning.json").read_text())
        assert {trial["temperature"] for trial in printed["trials"]} == {0.04, 0.05}

    @pytest.mark.parametrize(
        ("flags", "complaint"),
        [
            (["--top-b", "1001"], "--top-b: expected less than or equal to 1000; found '1001'"),
            (["--metric", "F1"], "--metric: expected 'P@1', 'P@3'"),
            (["--taus", "1"], "unrecognized arguments: --taus 1; see `recollect tune --help`"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_tune_with_a_bad_flag_prints_one_line_and_changes_nothing(
        self, run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
    ) -> None:
        before = files(run)
        assert recollect.main(["tune", str(run), *flags]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("recollect tune: ")
        assert complaint in err
        assert files(run) == before


class TestRefused:
    def test_tuning_is_refused_if_no_instance_has_a_label(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, random_units(np.random.default_rng(0), 5), [set(), set(), set()])
        before = files(run)
        with pytest.raises(
            TrainingError, match=r"expected instances with labels that the training held out, found none"
        ):
            tune(settings(run))
        assert files(run) == before
