"""The proofs of `benchmarks.proofs`, on data that is small enough for a test."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks.proofs import __main__ as command
from benchmarks.proofs import (
    cache_memory,
    clustering,
    decoupled,
    memorise,
    ova_knn,
    small_runs,
    tiny,
    training_time,
)
from benchmarks.proofs.cache_memory import Peak
from benchmarks.proofs.claim import Check, Claim, Measurement, read_measurements, record
from benchmarks.proofs.claims import CLAIMS
from benchmarks.proofs.clustering import Clustering
from benchmarks.proofs.report import page
from tests.trainer.helpers import label_sets, random_units
from tests.trainer.runs import CHILDREN


@pytest.mark.slow
def test_decoupled_softmax_learns_the_marker_token_and_softmax_does_not() -> None:
    precision = decoupled.compare_losses(decoupled.SMALL)
    assert list(precision) == ["softmax", "decoupled softmax"]
    assert precision["decoupled softmax"] >= 99
    assert precision["softmax"] < precision["decoupled softmax"] - 15


@pytest.mark.slow
def test_random_pairs_are_memorised_only_with_training() -> None:
    assert memorise.memorise(pairs=300, epochs=0) < 10
    assert memorise.memorise(pairs=300, epochs=30) == 100
    assert memorise.memorise(pairs=1_000, epochs=24, in_batch=True) > 99


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.uses_data])
def test_claims_are_measured_on_the_built_in_sample(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(small_runs, "INSTANCES", 80)
    monkeypatch.setattr(small_runs, "TEST_TEXTS", 40)
    monkeypatch.setattr(small_runs, "_STEPS", 4)
    monkeypatch.setattr(small_runs, "_BATCH_SIZE", 32)
    monkeypatch.setattr(training_time, "_STEPS", (20, 60))
    monkeypatch.setattr(command, "RECORDED", tmp_path)
    status = command.main([name, "--seeds", "3", "--record"])
    (row,) = read_measurements(tmp_path / f"{name}.json")
    assert status == (0 if all(map(row.holds, CLAIMS[name].checks)) else 1)
    assert row.data == "built-in sample"
    assert all(0 <= value <= 100 for name, (value,) in row.figures.items() if "CPU" not in name)
    assert capsys.readouterr().out.startswith(f"## {CLAIMS[name].source}")


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure memory in children of a small process, because the peak of a process includes its parent's memory."""
    monkeypatch.setattr(cache_memory.multiprocessing, "get_context", lambda _: CHILDREN)


@pytest.mark.slow
@pytest.mark.usefixtures("small_process")
def test_gradient_cache_needs_less_than_a_third_of_the_memory_of_kept_graphs() -> None:
    small, large = cache_memory.prove((4_000, 8_000), most_direct=4_000)
    assert [peak.labels for peak in (small, large)] == [4_000, 8_000]
    assert small.direct_bytes is not None
    assert small.cached_bytes < small.direct_bytes / 3
    assert large.direct_bytes is None
    assert large.cached_bytes < small.direct_bytes


@pytest.mark.slow
def test_each_label_needs_little_more_memory_than_its_vector_and_its_gradient() -> None:
    peaks = cache_memory.prove((8_000, 24_000), most_direct=0)
    assert 1.9 < cache_memory.numbers_per_label(peaks) <= cache_memory.MAX_NUMBERS_PER_LABEL


@pytest.mark.usefixtures("small_process")
def test_measurement_whose_process_fails_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_memory, "_measure", os._exit)  # the arguments are wrong, so the process fails
    with pytest.raises(RuntimeError, match="the process that measures 1,000 labels ended without a result"):
        cache_memory.prove((1_000,))


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc, which only Linux has")
def test_clustering_needs_less_memory_than_the_vectors() -> None:
    result = clustering.prove(clustering.Size(rows=50_000, dim=64, centres=128))
    assert result.peak_bytes < 4 * 50_000 * 64
    assert result.random < result.tightness < result.planted
    assert result.gain > clustering.MIN_GAIN


class TestTiny:
    def test_random_texts_contain_neither_the_padding_token_nor_the_marker_token(self) -> None:
        drawn = tiny.random_texts(np.random.default_rng(0), 2_000, 8)
        assert drawn.shape == (2_000, 8)
        assert (drawn.min(), drawn.max()) == (2, tiny.VOCABULARY - 1)

    def test_token_table_contains_the_random_texts_row_by_row(self) -> None:
        drawn = tiny.random_texts(np.random.default_rng(0), 5, 3)
        ids, mask, *_ = tiny.Texts(drawn).table().batch(np.array([4, 0]), "cpu")
        np.testing.assert_array_equal(ids.numpy(), drawn[[4, 0]])
        assert mask.all()

    def test_label_sets_hold_the_given_lists_of_labels(self) -> None:
        rows = [[3, 1], [], [0]]
        found, expected = tiny.label_sets(rows), label_sets(rows)
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)

    def test_weights_of_the_tiny_encoder_depend_on_the_seed_and_vectors_have_length_1(self) -> None:
        texts = tiny.Texts(tiny.random_texts(np.random.default_rng(0), 4, 8))
        first, second, other = (tiny.vectors(tiny.tiny_encoder(seed, 8).eval(), texts) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, second)
        assert not np.allclose(first, other)
        np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)


class TestClaim:
    ROW = Measurement("data", {"new": [3.0, 5.0, 4.0], "old": [2.0, 4.9, 3.0], "other": [1.0, 6.0, 1.0]})

    @pytest.mark.parametrize(
        ("larger", "smaller", "holds"),
        [("new", "old", True), ("old", "new", False), ("new", "other", False), ("new", 2.9, True), (5, "new", False)],
    )
    def test_claim_holds_if_the_order_is_as_stated_with_every_seed(
        self, larger: str | float, smaller: str | float, holds: bool
    ) -> None:
        assert self.ROW.holds(Check("", larger, smaller)) is holds

    def test_page_has_mean_lowest_and_highest_value_and_the_verdict(self) -> None:
        checks = Check("better", "new", "old", "9 > 8"), Check("above", "other", 2)
        claim = Claim("name", "Source", "Summary.", "Conditions.", lambda *_: {}, checks)
        lines = page([replace(claim, name="later"), claim], {"name": [self.ROW]}).splitlines()
        assert lines.count("## Source") == 2
        assert lines.count("Not measured yet.") == 1
        assert "python -m benchmarks.proofs name --data FOLDER" in lines
        assert lines[-2:] == [
            "| better | 9 > 8 | data | new 4.0 [3.0, 5.0] > old 3.3 [2.0, 4.9] | holds |",
            "| above | - | data | other 2.7 [1.0, 6.0] > 2 | **does not hold here** |",
        ]

    def test_new_measurements_replace_those_on_the_same_data(self, tmp_path: Path) -> None:
        path = tmp_path / "recorded" / "name.json"
        assert list(read_measurements(path)) == []
        for row in (Measurement("b", {"new": [1.0]}), self.ROW, Measurement("b", {"new": [2.0]})):
            record(path, [row])
        assert list(read_measurements(path)) == [Measurement("b", {"new": [2.0]}), self.ROW]

    def test_page_in_the_docs_is_that_of_the_recorded_measurements(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["table"]) == 0
        assert (Path(__file__).parents[2] / "docs" / "claims.md").read_text() == capsys.readouterr().out

    def test_mixture_of_votes_and_classifier_equals_loops(self) -> None:
        random = np.random.default_rng(0)
        queries, instances = random_units(random, 3, 8), random_units(random, 5, 8)
        values = sparse.csr_matrix(random.random((5, 4)) < 0.4)
        votes = ova_knn.knn_votes(queries, instances, values)
        for query, vector in enumerate(queries):
            weights = np.exp(instances @ vector / 0.04)
            np.testing.assert_allclose(votes[query], weights / weights.sum() @ values.toarray(), atol=1e-5)
        classified = ova_knn.sigmoid(np.zeros((3, 4)), 0.05)
        np.testing.assert_allclose(ova_knn.mixed(votes, classified, 0.25), 0.25 * votes + 0.375)


class TestCommand:
    @pytest.mark.parametrize("arguments", [[], ["none"], ["cache", "--seeds", "x"]], ids=" ".join)
    def test_command_with_bad_arguments_prints_the_usage_and_exits_with_2(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("usage: python -m benchmarks.proofs")

    def test_dataset_that_cannot_be_read_is_told_in_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["lambda", "--data", str(tmp_path / "absent"), "--work", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"python -m benchmarks.proofs: {tmp_path / 'absent'}: expected")

    @pytest.mark.parametrize(("figure", "status"), [(1.0, 0), (3.0, 1)])
    def test_command_measures_each_seed_and_exits_with_1_if_the_claim_does_not_hold(
        self, figure: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        claim = replace(
            CLAIMS["memorise"],
            measure=lambda folder, work, seed: {"a": 2.0 + seed, "b": figure},
            checks=(Check("a is larger", "a", "b"),),
        )
        monkeypatch.setitem(command.CLAIMS, "memorise", claim)
        assert command.main(["memorise", "--seeds", "0", "1"]) == status
        assert "| random texts | a 2.5 [2.0, 3.0] > b" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("name", "module", "proven", "not_proven", "shown"),
        [
            (
                "cache",
                cache_memory,
                [Peak(1_000, 5_000_000, 90_000_000), Peak(64_000, 40_000_000, None)],
                [Peak(1_000, 5_000_000, 4_000_000), Peak(64_000, 40_000_000, None)],
                "  64,000          40                -",
            ),
            (
                "cache",
                cache_memory,
                [Peak(1_000, 5_000_000, 90_000_000), Peak(64_000, 45_000_000, None)],
                [Peak(1_000, 5_000_000, 90_000_000), Peak(64_000, 50_000_000, None)],
                "each label adds 2.48 numbers for each dimension; its vector and its gradient are 2 of them",
            ),
            (
                "clustering",
                clustering,
                Clustering(9.5, 40_000_000, tightness=0.6, planted=0.7, random=0.1),
                Clustering(9.5, 40_000_000, tightness=0.3, planted=0.7, random=0.1),
                "clustered in 9.5 s, in 40 MB beside the mapped vectors",
            ),
            (
                "clustering",
                clustering,
                Clustering(9.5, 99_000_000, tightness=0.6, planted=0.7, random=0.1),
                Clustering(9.5, 101_000_000, tightness=0.6, planted=0.7, random=0.1),
                "mean cosine to the cluster's mean 0.600: planted clusters 0.700, random ones 0.100",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) and " " not in value else "",
    )
    def test_command_prints_measurements_and_exits_with_1_if_the_proof_fails(
        self,
        name: str,
        module: object,
        proven: object,
        not_proven: object,
        shown: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(module, "prove", lambda: proven)
        assert command.main([name]) == 0
        assert shown in capsys.readouterr().out
        monkeypatch.setattr(module, "prove", lambda: not_proven)
        assert command.main([name]) == 1
        assert capsys.readouterr().out != ""
