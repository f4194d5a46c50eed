import numpy as np
import pytest
from napkinxc import metrics as napkinxc
from scipy.sparse import csr_matrix

from recollect.index_builder.evaluation.measured import macro_f1, report
from recollect.trainer.metrics import (
    METRICS,
    by_label,
    hits,
    ndcg_at,
    precision_at,
    propensity_weights,
    query_scores,
    recall_at,
)


def truth_of(rows: list[list[int]], labels: int) -> csr_matrix:
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.array([label for row in rows for label in row], dtype=np.int32)
    return csr_matrix((np.ones(len(indices)), indices, indptr), shape=(len(rows), labels))


def macro_f1_at(predictions: np.ndarray, truth: csr_matrix, counts: np.ndarray, k: int = 5) -> dict[str, float]:
    """The fraction of each segment with labels."""
    found = macro_f1(predictions, hits(predictions, truth), truth, counts, k)
    percentages = found.values(np.ones((1, truth.shape[0])))[0].tolist()
    pairs = zip(found.names, percentages, strict=True)
    return {name.partition(" ")[2]: each / 100 for name, each in pairs if name.startswith("F1@")}


def predictions_of(rows: list[list[int]], top_k: int) -> np.ndarray:
    return np.array([row + [-1] * (top_k - len(row)) for row in rows], dtype=np.int64)


# Three queries over five labels: two hits of three; a query without true labels; one wrong prediction.
PREDICTIONS = predictions_of([[2, 0, 4], [1, 3], [3]], top_k=3)
TRUTH = truth_of([[4, 1, 2], [], [0]], labels=5)
HIT = np.array([[True, False, True], [False, False, False], [False, False, False]])


class TestHits:
    def test_hits_marks_the_predictions_that_are_true_labels(self) -> None:
        np.testing.assert_array_equal(hits(PREDICTIONS, TRUTH), HIT)

    def test_repeated_labels_and_stored_zeros_in_the_truth_do_not_change_hits(self) -> None:
        # The weights of label 4 would cancel if they were summed.
        messy = csr_matrix(
            (np.array([1.0, 1.0, -1.0, 1.0, 0.0]), np.array([1, 4, 4, 2, 0]), np.array([0, 5])), shape=(1, 5)
        )
        predictions = np.array([[4, 2, 0]])
        tidy = truth_of([[1, 2, 4]], labels=5)
        assert hits(predictions, messy).tolist() == [[True, True, False]]
        for name in METRICS:
            found, expected = (query_scores(name, predictions, truth, np.ones(5)) for truth in (messy, tidy))
            assert found.tolist() == expected.tolist()

    def test_hits_is_correct_if_query_number_times_label_number_exceeds_32_bits(self) -> None:
        labels, queries = 1_300_000, 4_000
        truth = truth_of([[labels - 1]] * queries, labels)
        assert hits(np.full((queries, 1), labels - 1), truth).all()
        assert not hits(np.full((queries, 1), labels - 2), truth).any()

    @pytest.mark.parametrize("label", [-2, 5])
    def test_prediction_of_an_unknown_label_is_refused(self, label: int) -> None:
        with pytest.raises(ValueError, match="expected label positions from 0 to 4"):
            hits(np.array([[label], [0], [0]]), TRUTH)


class TestMacroF1:
    def test_macro_f1_is_the_mean_over_the_labels_of_each_segment(self) -> None:
        predictions = predictions_of([[0, 2], [0, 3], [1]], top_k=2)
        truth = truth_of([[0, 2], [1], [1, 3]], labels=5)
        # TP, FP, FN of labels 0 to 4: 1 1 0, 1 0 1, 1 0 0, 0 1 1, 0 0 0.
        counts = np.array([2000, 500, 500, 50, 5])
        f1 = macro_f1_at(predictions, truth, counts, k=2)
        expected = {"head": 2 / 3, "torso": (2 / 3 + 1) / 2, "tail": 0, "extreme tail": 0}
        assert f1 == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("count", "segment"),
        [(0, "unseen"), (10, "extreme tail"), (11, "tail"), (100, "tail"), (1000, "torso"), (1001, "head")],
    )
    def test_segment_of_labels_includes_its_upper_bound_of_training_instances(self, count: int, segment: str) -> None:
        f1 = macro_f1_at(np.array([[0]]), truth_of([[0]], labels=1), np.array([count]))
        assert f1 == {segment: 1}


class TestReport:
    def test_report_contains_percentages(self) -> None:
        measured = report(PREDICTIONS, TRUTH, np.array([2000, 500, 50, 50, 5]), instances=3000)
        assert measured["P@1"] == pytest.approx(100 / 3)
        assert measured["R@100"] == pytest.approx(200 / 9)
        assert measured["F1@5 extreme tail"] == 100

    def test_propensity_parameters_change_psp_in_the_report(self) -> None:
        counts = np.array([400, 1, 9, 30, 2])
        weights = propensity_weights(counts, 500, 0.6, 2.6)
        measured = report(PREDICTIONS, TRUTH, counts, 500, propensity=(0.6, 2.6))
        assert measured["PSP@3"] == pytest.approx(query_scores("PSP@3", PREDICTIONS, TRUTH, weights).mean())


def random_rows() -> tuple[list[list[int]], list[list[int]]]:
    """Predictions of 0 to 6 labels for 300 queries with 0 to 8 true labels. Some predicted labels are true."""
    random = np.random.default_rng(0)

    def some(most: int) -> list[int]:
        return random.permutation(LABELS)[: random.integers(0, most + 1)].tolist()

    true = [some(8) for _ in range(300)]
    predicted = [list(dict.fromkeys(some(3) + labels[: random.integers(0, 4)])) for labels in true]
    return predicted, true


LABELS = 30
PREDICTED_ROWS, TRUE_ROWS = random_rows()


class TestAgreementWithNapkinxc:
    """napkinXC takes lists of labels and returns fractions at 1 to k. k = 7 exceeds the number of predictions."""

    predictions = predictions_of(PREDICTED_ROWS, top_k=6)
    truth = truth_of(TRUE_ROWS, LABELS)
    hit = hits(predictions, truth)
    sizes = np.diff(truth.indptr)

    def test_precision_equals_that_of_napkinxc(self) -> None:
        ours = [precision_at(self.hit, k).mean() for k in range(1, 8)]
        np.testing.assert_allclose(ours, napkinxc.precision_at_k(TRUE_ROWS, PREDICTED_ROWS, k=7))

    def test_recall_equals_that_of_napkinxc(self) -> None:
        ours = [recall_at(self.hit, self.sizes, k).mean() for k in range(1, 8)]
        np.testing.assert_allclose(ours, napkinxc.recall_at_k(TRUE_ROWS, PREDICTED_ROWS, k=7))

    def test_ndcg_equals_that_of_napkinxc_even_for_queries_with_fewer_than_k_labels(self) -> None:
        ours = [ndcg_at(self.hit, self.sizes, k).mean() for k in range(1, 8)]
        np.testing.assert_allclose(ours, napkinxc.ndcg_at_k(TRUE_ROWS, PREDICTED_ROWS, k=7))

    @pytest.mark.parametrize(("a", "b"), [(0.55, 1.5), (0.6, 2.6), (0.5, 0.4)])
    def test_propensity_weights_equal_those_of_napkinxc(self, a: float, b: float) -> None:
        counts = np.bincount(self.truth.indices, minlength=LABELS)
        theirs = napkinxc.Jain_et_al_inverse_propensity(self.truth, A=a, B=b)
        np.testing.assert_allclose(propensity_weights(counts, len(TRUE_ROWS), a, b), theirs)

    def test_propensity_scored_precision_equals_that_of_napkinxc(self) -> None:
        weights = np.random.default_rng(1).uniform(1, 20, LABELS)
        ours = [query_scores(f"PSP@{k}", self.predictions, self.truth, weights).mean() / 100 for k in range(1, 8)]
        theirs = napkinxc.psprecision_at_k(TRUE_ROWS, PREDICTED_ROWS, weights, k=7, normalize=True)
        np.testing.assert_allclose(ours, theirs)

    def test_macro_f1_of_one_segment_equals_that_of_napkinxc(self) -> None:
        # napkinXC averages over all labels up to the highest label in its input; here, all labels.
        counts = np.full(LABELS, 50)
        ours = [macro_f1_at(self.predictions, self.truth, counts, k)["tail"] for k in range(1, 6)]
        np.testing.assert_allclose(ours, napkinxc.macro_f1_measure_at_k(TRUE_ROWS, PREDICTED_ROWS, k=5))

    def test_macro_f1_and_coverage_equal_those_of_napkinxc_and_of_the_report(self) -> None:
        f1, found = zip(*(by_label(self.predictions, self.truth, k) for k in range(1, 6)), strict=True)
        # napkinXC averages F1 over all labels, also over those that are not true of a query.
        true = len(np.unique(self.truth.indices))
        ours = [each.sum() / LABELS for each in f1]
        np.testing.assert_allclose(ours, napkinxc.macro_f1_measure_at_k(TRUE_ROWS, PREDICTED_ROWS, k=5))
        np.testing.assert_allclose(
            [each.mean() for each in found], napkinxc.coverage_at_k(TRUE_ROWS, PREDICTED_ROWS, k=5)
        )
        measured = report(self.predictions, self.truth, np.full(LABELS, 50), len(TRUE_ROWS))
        assert measured["macro F1@5"] == pytest.approx(100 * f1[-1].sum() / true)
        assert measured["coverage@5"] == pytest.approx(100 * found[-1].sum() / true)
