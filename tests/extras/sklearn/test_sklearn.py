"""The scikit-learn classifier: forms of y, scikit-learn's own checks, cross-validation, files, and wrong input."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import MultiLabelBinarizer

import recollect
from recollect.extras.sklearn.classifier import RecollectClassifier, align, as_form, read_targets
from tests.conftest import TOPICS
from tests.tiny_runs import write_tiny_encoder

TEXTS = [text for sentences in TOPICS.values() for text in sentences[:4]]
LISTS = [[label] for label, sentences in TOPICS.items() for _ in sentences[:4]]
LISTS[0] = ["Law", "Taxation"]
NAMES = sorted({label for labels in LISTS for label in labels})
MATRIX = sparse.csr_array(MultiLabelBinarizer(sparse_output=True).fit_transform(LISTS))


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    encoder = write_tiny_encoder(tmp_path_factory.mktemp("encoder"), "bert")
    build = {"index": "flat", "lexical": "off", "precision": "fp32", "threads": 1, "force": True}
    return {"encoder": str(encoder), "max_length": 16, "build_flags": build}


@pytest.fixture(scope="module")
def fitted(flags: dict[str, Any]) -> RecollectClassifier:
    return RecollectClassifier(**flags, label_texts=NAMES).fit(TEXTS, MATRIX)


# The checks of scikit-learn that do not fit. All others give numbers as X. The tags of the classifier state that X is
# text, so scikit-learn skips them.
CHECKS = (
    "estimator_cloneable",
    "estimator_tags_renamed",
    "valid_tag_types",
    "estimator_repr",
    "no_attributes_set_in_init",
    "parameters_default_constructible",
    "mixin_order",
    "get_params_invariance",
    "set_params",
    "do_not_raise_errors_in_init_or_set_params",
)


@pytest.mark.parametrize("check", CHECKS)
def test_estimator_check_of_scikit_learn_passes(check: str) -> None:
    from sklearn.utils import estimator_checks

    getattr(estimator_checks, f"check_{check}")("RecollectClassifier", RecollectClassifier())


def test_matrix_gives_a_matrix_of_labels_and_of_probabilities(fitted: RecollectClassifier) -> None:
    assert fitted.classes_.tolist() == list(range(len(NAMES)))
    assert fitted.labels_per_text_ == 1
    found, scores = fitted.predict(TEXTS), fitted.predict_proba(TEXTS)
    assert sparse.issparse(found)
    assert sparse.issparse(scores)
    assert found.shape == scores.shape == MATRIX.shape
    assert found.sum(axis=1).tolist() == [1] * len(TEXTS)
    dense = scores.toarray()
    assert ((dense >= 0) & (dense <= 1)).all()
    assert (dense.argmax(axis=1) == found.toarray().argmax(axis=1)).all()


def test_integer_labels_keep_their_numbers(flags: dict[str, Any]) -> None:
    labels = [1 + 3 * row % 5 for row in range(len(TEXTS))]
    classifier = RecollectClassifier(**flags, lambda_=1.0, temperature=1e-3).fit(TEXTS, labels)
    assert classifier.predict(TEXTS).tolist() == labels


def test_score_is_the_share_of_texts_whose_best_label_is_right(fitted: RecollectClassifier) -> None:
    right = fitted.predict(TEXTS).multiply(MATRIX).sum(axis=1).astype(bool)
    assert fitted.score(TEXTS, MATRIX) == right.mean() > 0.9
    weights = np.where(right, 0, 1) + np.arange(len(TEXTS)) / 1_000
    assert fitted.score(TEXTS, MATRIX, weights) == pytest.approx(np.average(right, weights=weights))


def test_parameters_of_the_search_apply_to_a_fitted_classifier(fitted: RecollectClassifier) -> None:
    before = fitted.get_params()
    fitted.set_params(k=3, top_k=2)
    assert fitted.predict(TEXTS).sum(axis=1).tolist() == [3] * len(TEXTS)
    assert (np.diff(fitted.predict_proba(TEXTS).indptr) == 2).all()
    with pytest.raises(recollect.ERRORS, match="top_b"):
        fitted.set_params(top_b=0).predict(TEXTS)
    fitted.set_params(**before)


def test_saved_classifier_answers_the_same_after_it_is_loaded(fitted: RecollectClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    loaded = RecollectClassifier.load(tmp_path / "saved")
    assert loaded.get_params() == fitted.get_params()
    assert (loaded.predict_proba(TEXTS) != fitted.predict_proba(TEXTS)).nnz == 0
    assert recollect.open(tmp_path / "saved" / "store").predict(TEXTS[5])[0].text in NAMES
    with pytest.raises(FileExistsError):
        fitted.save(tmp_path / "saved")


@pytest.mark.parametrize(
    "parameters",
    [
        {"label_texts": np.array(NAMES, dtype=object)},
        {"k": np.int64(2), "top_b": np.int32(50), "temperature": np.float32(0.5)},
        {"encoder": Path("encoder"), "train_flags": {"rank": "no", "tau": np.array([0.5])}},
    ],
    ids=lambda parameters: " ".join(parameters),
)
def test_parameters_of_numpy_and_pandas_and_paths_are_used_and_saved(
    fitted: RecollectClassifier, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    before = fitted.get_params()
    try:
        fitted.set_params(**parameters).save(tmp_path / "saved")
        loaded = RecollectClassifier.load(tmp_path / "saved")
        assert (loaded.predict(TEXTS) != fitted.predict(TEXTS)).nnz == 0
        assert {type(value) for value in loaded.get_params().values()} <= {
            str,
            int,
            float,
            bool,
            list,
            dict,
            type(None),
        }
    finally:
        fitted.set_params(**before)


def test_a_parameter_that_json_has_not_is_refused_before_a_file_is_written(
    fitted: RecollectClassifier, tmp_path: Path
) -> None:
    before = fitted.get_params()
    try:
        with pytest.raises(ValueError, match=r"train_flags\['x'\]\[0\]: expected a number, a text, .*, found object"):
            fitted.set_params(train_flags={"x": [object()]}).save(tmp_path / "saved")
    finally:
        fitted.set_params(**before)
    assert list(tmp_path.iterdir()) == []
    fitted.save(tmp_path / "saved")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        fitted.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "saved"]


@pytest.mark.parametrize("content", [None, "{}", "[", json.dumps({"format_version": 2})])
def test_folder_without_a_saved_classifier_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "classifier.json").write_text(content)
    with pytest.raises(ValueError, match=r"classifier\.json: expected a classifier that `save` wrote, found"):
        RecollectClassifier.load(tmp_path)


def test_fitted_classifier_is_not_pickled_and_an_unfitted_one_is(fitted: RecollectClassifier) -> None:
    with pytest.raises(TypeError, match=r"not pickled; call save\(folder\)"):
        pickle.dumps(fitted)
    assert pickle.loads(pickle.dumps(RecollectClassifier(k=2))).k == 2
    with pytest.raises(NotFittedError):
        clone(fitted).predict(TEXTS)


class TestTargets:
    @pytest.mark.parametrize(
        ("y", "form", "classes"),
        [
            (sparse.csr_matrix([[1, 0], [0, 1]]), "sparse", [0, 1]),
            (np.array([[True, False], [False, True]]), "dense", [0, 1]),
            ([[1, 0], [0, 1]], "dense", [0, 1]),
            ([["a"], ["b"]], "lists", ["a", "b"]),
            ([3, 7], "single", [3, 7]),
            (np.array(["a", "b"]), "single", ["a", "b"]),
        ],
    )
    def test_every_form_is_recognised_and_written_again(self, y: Any, form: str, classes: list[Any]) -> None:
        targets = read_targets(y, 2)
        assert (targets.form, targets.classes.tolist()) == (form, classes)
        assert targets.matrix.toarray().tolist() == [[1, 0], [0, 1]]
        again = as_form(targets.form, targets.classes, targets.matrix)
        assert (read_targets(again, 2).matrix != targets.matrix).nnz == 0

    def test_sparse_matrix_of_the_user_does_not_change(self) -> None:
        y = sparse.csr_array((np.array([0, 1, 1]), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
        assert read_targets(y, 2).matrix.nnz == 2
        assert (y.nnz, y.data.tolist(), y.indptr.tolist()) == (3, [0, 1, 1], [0, 2, 3])

    def test_labels_that_fit_did_not_see_are_left_out(self) -> None:
        aligned = align(read_targets([["c", "a"], ["b"]], 2), np.array(["a", "b"], dtype=object))
        assert aligned.toarray().tolist() == [[1, 0], [0, 1]]

    @pytest.mark.parametrize(
        "y",
        [
            np.array([["a", "b"], ["c", "d"]]),
            np.array([["a", "b"], ["c", "d"]], dtype=object),
            [np.array(["a", "b"]), {"c", "d"}],
        ],
    )
    def test_arrays_of_strings_are_read_as_lists(self, y: Any) -> None:
        targets = read_targets(y, 2)
        assert (targets.form, targets.classes.tolist()) == ("lists", ["a", "b", "c", "d"])
        assert targets.matrix.toarray().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]

    def test_series_and_data_frames_are_read_as_arrays_and_lists(self) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        index = [7, 3]
        lists = pandas.Series([["b"], ["a", "b"]], index=index)
        assert read_targets(lists, 2).matrix.toarray().tolist() == [[0, 1], [1, 1]]
        arrays = pandas.Series([np.array(["b"]), np.array(["a", "b"])], index=index)
        assert read_targets(arrays, 2).form == "lists"
        single = pandas.Series(["b", "a"], index=index, dtype="category")
        assert read_targets(single, 2).matrix.toarray().tolist() == [[0, 1], [1, 0]]
        for frame in (
            pandas.DataFrame({"x": [0, 1], "y": [1, 0]}, index=index),
            pandas.DataFrame({"x": [False, True], "y": [1, 0]}, index=index),
            pandas.DataFrame({"x": [0, 1], "y": [1, 0]}, dtype="Int64"),
        ):
            targets = read_targets(frame, 2)
            assert (targets.form, targets.matrix.toarray().tolist()) == ("dense", [[0, 1], [1, 0]])

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            ([[0, 2], [1, 0]], "expected a matrix of zeros and ones, found the value 2"),
            ([["a"], ["b"], ["c"]], "expected 2 rows, as many as texts in X, found 3"),
            ([["a"], "b"], "expected a matrix of zeros and ones with the axes"),
            (np.array([["a", 1], ["c", 2]], dtype=object), "found values of the type object"),
            (None, "found NoneType"),
            ([float("nan"), 1.0], r"y\[0\]: expected a label, found nan"),
            ([["a"], None], "expected a matrix of zeros and ones with the axes"),
            (np.array(["a", 1], dtype=object), "y: expected labels of one type, found int, str"),
        ],
    )
    def test_other_forms_are_refused(self, y: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_targets(y, 2)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", r"X: expected a list or an array of texts, found str"),
        (np.ones((2, 2)), r"X: expected a list or an array of texts, found ndarray"),
        (["a", 1.0], r"X\[1\]: expected a string, found float"),
        (["a", " "], r"X\[1\]: the text is empty"),
        (["a", "\u200b\ufeff"], r"X\[1\]: the text is empty"),
        ([], r"X: expected at least one text"),
    ],
)
def test_wrong_texts_are_refused(fitted: RecollectClassifier, texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted.predict(texts)


def test_wrong_parameters_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="label_texts: expected 7 texts, one for each label, found 1"):
        RecollectClassifier(**flags, label_texts=["x"]).fit(TEXTS, MATRIX)
    with pytest.raises(ValueError, match=r"label_texts\[1\]: expected a string, found float"):
        RecollectClassifier(**flags, label_texts=["x", float("nan"), *NAMES[2:]]).fit(TEXTS, MATRIX)
    with pytest.raises(recollect.UsageError, match="unknown keyword epoch;"):
        RecollectClassifier(**flags, train_flags={"epoch": 1}).fit(TEXTS, MATRIX)


def test_import_of_recollect_does_not_import_the_submodule() -> None:
    code = (
        "import sys, recollect; print('sklearn' in sys.modules, end=' '); "
        "print(recollect.sklearn.RecollectClassifier.__module__, end=' ')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False recollect.sklearn "
