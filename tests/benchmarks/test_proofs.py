"""The proofs of `benchmarks.proofs`, on data that is small enough for a test."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.proofs import __main__ as command
from benchmarks.proofs import cache_memory, clustering, decoupled, lambda_curve, memorise, tiny
from benchmarks.proofs.cache_memory import Peak
from benchmarks.proofs.clustering import Clustering
from benchmarks.proofs.decoupled import Size
from tests.conftest import keep_some_labels
from tests.trainer.helpers import label_sets
from tests.trainer.runs import CHILDREN

SMALL = Size(queries=300, marked=60, labels=600, test=200, epochs=40)


@pytest.mark.slow
def test_decoupled_softmax_learns_the_marker_token_and_softmax_does_not() -> None:
    precision = decoupled.prove(SMALL)
    assert list(precision) == ["softmax", "decoupled softmax"]
    assert precision["decoupled softmax"] >= 99
    assert precision["softmax"] < precision["decoupled softmax"] - 15


@pytest.mark.slow
def test_random_pairs_are_memorised_only_with_training() -> None:
    assert memorise.prove(pairs=300, epochs=0) < 10
    assert memorise.prove(pairs=300, epochs=30) == 100


@pytest.mark.slow
def test_best_lambda_is_between_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    write_sample = lambda_curve.write_sample

    def write_some(folder: Path) -> None:
        write_sample(folder)
        keep_some_labels(folder, 40)

    monkeypatch.setattr(lambda_curve, "write_sample", write_some)
    curve = lambda_curve.prove(400)
    assert list(curve) == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1]
    assert max(curve.values()) > max(curve[0], curve[1])


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure memory in children of a small process, because the peak of a process includes its parent's memory."""
    monkeypatch.setattr(cache_memory.multiprocessing, "get_context", lambda _: CHILDREN)


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


class TestCommand:
    @pytest.mark.parametrize("arguments", [[], ["none"], ["lambda", "cache"], ["--help"]], ids=" ".join)
    def test_command_with_bad_arguments_prints_the_usage_and_exits_with_2(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(arguments) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", "usage: python -m benchmarks.proofs {decoupled,memorise,lambda,cache,clustering}\n")

    @pytest.mark.parametrize(
        ("name", "module", "proven", "not_proven", "shown"),
        [
            (
                "decoupled",
                decoupled,
                {"softmax": 21.5, "decoupled softmax": 100.0},
                {"softmax": 60.0, "decoupled softmax": 100.0},
                "softmax            P@1  21.50",
            ),
            ("memorise", memorise, 100.0, 99.9, "random pairs memorised: P@1 100.00"),
            ("lambda", lambda_curve, {0: 10.0, 0.5: 30.0, 1: 20.0}, {0: 10.0, 0.5: 15.0, 1: 20.0}, "lambda 0.5  P@1"),
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
