"""A scikit-learn classifier of texts with many labels. Users import it as `recollect.sklearn`.

from recollect.sklearn import RecollectClassifier

classifier = RecollectClassifier().fit(texts, y)
classifier.predict_proba(other_texts)
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

import recollect
from recollect.core.options import MAX_TOP_K
from recollect.core.system.files import filled_folder, read_json, write_json, write_lines
from recollect.core.texts import integer_as_uid, is_blank
from recollect.trainer.train_settings import TrainSettings

__all__ = ["RecollectClassifier"]

_FORMAT_VERSION = 1
_FACTS = "classifier.json"
# Number of texts that are answered together.
_CHUNK_TEXTS = 1_024
# sparse, dense: a matrix with the axes (text, label). lists: strings for each text. single: one label for each text.
Form = Literal["sparse", "dense", "lists", "single"]


class RecollectClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Trains, builds and asks a Recollect model through scikit-learn's interface.

    Parameters:
        encoder: Encoder, as `recollect train --encoder`.
        method, random_state: Training method and seed.
        epochs: Passes over the texts; 0 trains nothing and encodes the texts with the pretrained encoder.
        max_length: Maximum number of tokens of a text.
        label_texts: Text of each label, in the order of the columns of y or of `classes_`; None: the label itself.
        train_flags: Other flags of `recollect train`, such as `{"rank": "yes"}`.
        build_flags: Flags of `recollect build`, such as `{"index": "flat"}`.
        k: Number of labels that `predict` gives each text; None: with probabilities the set of labels with the highest
            expected F1, otherwise the mean number of labels of a training text.
        top_k: Maximum number of labels of a text with a probability above 0 in `predict_proba`.
        lambda_, temperature, top_b: Options of the search; None: the model's defaults.
        threads: Threads that answer; 0 means one for each core.
        verbose: Whether to print progress to standard error.

    Attributes:
        classes_: The labels: numbers of columns for a matrix y, otherwise the distinct labels, sorted.
        labels_per_text_: Mean number of labels of a training text, rounded, at least 1.
        model_: The open model, as from `recollect.open`.
        store_: The bundle store of the model, in a temporary folder. `save` keeps a copy.
    """

    def __init__(
        self,
        *,
        encoder: str | Path = "minilm",
        method: str = "rae",
        epochs: int = 0,
        max_length: int = 128,
        label_texts: Sequence[str] | None = None,
        train_flags: dict[str, Any] | None = None,
        build_flags: dict[str, Any] | None = None,
        k: int | None = None,
        top_k: int = 100,
        lambda_: float | None = None,
        temperature: float | None = None,
        top_b: int | None = None,
        threads: int = 1,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.epochs = epochs
        self.max_length = max_length
        self.label_texts = label_texts
        self.train_flags = train_flags
        self.build_flags = build_flags
        self.k = k
        self.top_k = top_k
        self.lambda_ = lambda_
        self.temperature = temperature
        self.top_b = top_b
        self.threads = threads
        self.random_state = random_state
        self.verbose = verbose

    # ---- scikit-learn's interface ----

    def fit(self, X: Any, y: Any) -> RecollectClassifier:  # noqa: N803 - scikit-learn's names
        """Train on texts and their labels.

        Args:
            X: Texts: a list, an array or a pandas Series of strings.
            y: A matrix of zeros and ones with the axes (text, label), sparse or dense; the labels of each text, as a
                list of lists of strings; or one label for each text. Arrays, Series and data frames are read alike.

        Raises:
            ValueError: If X or y is wrong.
            recollect.ERRORS: If a flag is wrong, or the training fails.
        """
        texts = _read_texts(X)
        targets = read_targets(y, len(texts))
        if len(targets.classes) == 0:
            raise ValueError("y: expected at least one label, found none")
        folder = Path(tempfile.mkdtemp(prefix="recollect-"))
        try:
            self._train(folder, texts, targets)
            self._open(folder / "store")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(self.model_, shutil.rmtree, folder, ignore_errors=True)
        self.classes_, self.form_ = targets.classes, targets.form
        self.labels_per_text_ = max(1, round(targets.matrix.nnz / len(texts)))
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the labels of each text, in the form of y that `fit` got."""
        check_is_fitted(self)
        texts = _read_texts(X)
        if self.form_ == "single":
            scores = self._scores(texts, top_k=1)
        elif self.k is None and self.model_.manifest.probabilities is not None:
            scores = self._scores(texts, assign=True)
        else:
            scores = self._scores(texts, top_k=self.labels_per_text_ if self.k is None else self.k)
        return as_form(self.form_, self.classes_, _indicator(scores.indptr, scores.indices, len(self.classes_)))

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """Return a matrix with the axes (text, label): the probabilities of the best `top_k` labels, and zeros.

        A model without probabilities gives its scores. With one label for each text, the rows add up to 1. The matrix
        is dense if y was dense or one label for each text, otherwise sparse.
        """
        check_is_fitted(self)
        scores = self._scores(_read_texts(X), top_k=min(self.top_k, MAX_TOP_K, len(self.classes_)))
        if self.form_ == "single":
            dense = scores.toarray()
            return dense / np.maximum(dense.sum(axis=1, keepdims=True), np.finfo(dense.dtype).tiny)
        return scores.toarray() if self.form_ == "dense" else scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return P@1: the share of texts whose best label is one of their labels. For one label a text: accuracy."""
        check_is_fitted(self)
        texts = _read_texts(X)
        truth = align(read_targets(y, len(texts)), self.classes_)
        found = self._scores(texts, top_k=1).astype(bool)
        right = np.asarray(truth.multiply(found).sum(axis=1)).ravel() > 0
        return float(np.average(right, weights=sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        # By default, scikit-learn looks for attributes with a final underscore, and finds the parameter `lambda_`.
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.multi_output, tags.classifier_tags.multi_label = True, True
        return tags

    # ---- Files ----

    def save(self, folder: str | Path) -> None:
        """Write the fitted classifier as a folder: its bundle store, and `classifier.json`.

        Args:
            folder: A folder that is absent or empty. If `save` fails, nothing is left in it.

        Raises:
            FileExistsError: If the folder has files.
            ValueError: If a parameter or a class is no number, text, list or dict.
        """
        check_is_fitted(self)
        facts = {
            "format_version": _FORMAT_VERSION,
            "form": self.form_,
            "classes": _plain(self.classes_, "classes_"),
            "labels_per_text": self.labels_per_text_,
            "parameters": {name: _plain(value, name) for name, value in self.get_params().items()},
        }
        with filled_folder(Path(folder), FileExistsError) as incoming:
            shutil.copytree(self.store_, incoming / "store")
            write_json(incoming / _FACTS, facts)

    @classmethod
    def load(cls, folder: str | Path) -> RecollectClassifier:
        """Open a classifier that `save` wrote.

        Raises:
            ValueError: If the folder holds no such classifier.
            recollect.ERRORS: If its bundle cannot be opened.
        """
        path = Path(folder) / _FACTS
        try:
            facts = read_json(path)
            if facts["format_version"] != _FORMAT_VERSION:
                raise ValueError(f"format_version {facts['format_version']}")
            classifier = cls(**facts["parameters"])
            classifier.form_, classifier.labels_per_text_ = facts["form"], facts["labels_per_text"]
            kind = object if facts["form"] == "lists" else None
            classifier.classes_ = np.array(facts["classes"], dtype=kind)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: expected a classifier that `save` wrote, found {error!r}") from None
        classifier._open(Path(folder) / "store")
        return classifier

    def __getstate__(self) -> Any:
        if self.__sklearn_is_fitted__():
            raise TypeError("a fitted RecollectClassifier is not pickled; call save(folder), and load(folder) later")
        return super().__getstate__()

    # ---- Steps ----

    def _train(self, folder: Path, texts: list[str], targets: Targets) -> None:
        self._write_dataset(folder / "data", texts, targets)
        flags = {"encoder": self.encoder, "epochs": self.epochs} | (self.train_flags or {})
        # An estimator has a value of each parameter, also of those without an effect.
        own = {"method": self.method, "seed": self.random_state, "max_length": self.max_length}
        flags = TrainSettings.read_of(own, flags) | flags
        with contextlib.nullcontext() if self.verbose else _quiet():
            recollect.train(folder / "data", out=folder / "run", **flags)
            recollect.build(folder / "run", store=folder / "store", **(self.build_flags or {}), activate=True)
        for name in ("data", "run"):
            shutil.rmtree(folder / name)

    def _write_dataset(self, folder: Path, texts: list[str], targets: Targets) -> None:
        uids = [str(label) for label in targets.classes.tolist()]
        names = uids if self.label_texts is None else list(map(integer_as_uid, self.label_texts))
        _check_count("label_texts", len(names), len(uids), "texts, one for each label")
        for place, name in enumerate(names):
            if not isinstance(name, str):
                raise ValueError(f"label_texts[{place}]: expected a string, found {type(name).__name__}")
        folder.mkdir()
        labels = ({"uid": uid, "text": name} for uid, name in zip(uids, names, strict=True))
        write_lines(folder / "labels.jsonl", labels)
        rows = zip(texts, targets.rows(), strict=True)
        train = ({"text": text, "labels": [uids[column] for column in columns]} for text, columns in rows)
        write_lines(folder / "train.jsonl", train)

    def _open(self, store: Path) -> None:
        self.store_, self.model_ = store, recollect.open(store, threads=self.threads, live="off")

    def _scores(self, texts: list[str], **options: Any) -> sparse.csr_array:
        """The probabilities of the labels that are answered, or their scores, with the axes (text, label)."""
        options |= {"lambda_": self.lambda_, "temperature": self.temperature, "top_b": self.top_b}
        indptr, columns, values = [0], list[int](), list[float]()
        for start in range(0, len(texts), _CHUNK_TEXTS):
            for labels in self.model_.predict(texts[start : start + _CHUNK_TEXTS], **options):
                columns += [label.position for label in labels]
                values += [label.score if label.probability is None else label.probability for label in labels]
                indptr.append(len(columns))
        shape = len(texts), len(self.classes_)
        scores = sparse.csr_array((np.array(values, np.float64), np.array(columns, np.int64), indptr), shape)
        scores.sort_indices()
        return scores


def _plain(value: Any, name: str) -> Any:
    """A value as JSON has it: numbers of numpy, arrays, Series and paths become numbers, lists and strings.

    Raises:
        ValueError: If JSON has no such value.
    """
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "to_numpy"):
        value = value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{name}[{place}]") for place, each in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"{name}: expected a number, a text, a list or a dict, found {type(value).__name__}")


def _read_texts(texts: Any) -> list[str]:
    """The texts of X.

    Raises:
        ValueError: If X is not a sequence of strings with words.
    """
    if isinstance(texts, str) or np.ndim(texts) != 1:
        raise ValueError(f"X: expected a list or an array of texts, found {type(texts).__name__}")
    for row, text in enumerate(read := list(texts)):
        if not isinstance(text, str):
            raise ValueError(f"X[{row}]: expected a string, found {type(text).__name__}")
        if is_blank(text):
            raise ValueError(f"X[{row}]: the text is empty; add words, or remove the row")
    if not read:
        raise ValueError("X: expected at least one text, found none")
    return [str(text) for text in read]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
        yield


# ---- Forms of y ----


@dataclass(frozen=True)
class Targets:
    """The labels of some texts.

    Attributes:
        form: The form in which they were given.
        classes: The labels: numbers of columns for a matrix, otherwise the distinct labels, sorted.
        matrix: Zeros and ones with the axes (text, label).
    """

    form: Form
    classes: np.ndarray
    matrix: sparse.csr_array

    def rows(self) -> list[list[int]]:
        """The columns of the labels of each text."""
        return [row.tolist() for row in np.split(self.matrix.indices, self.matrix.indptr[1:-1])]


def read_targets(y: Any, texts: int) -> Targets:
    """Read `y`, the labels of a number of texts, in any form.

    Raises:
        ValueError: If the form is unknown, a value is not 0 or 1, or the number of rows is wrong.
    """
    if sparse.issparse(y):
        return _read_matrix("sparse", sparse.csr_array(y, copy=True), texts)
    if hasattr(y, "to_numpy"):  # a Series or a data frame
        y = y.to_numpy()
    if _is_lists(y):
        return _read_lists([list(row) for row in y], texts)
    try:
        array = np.asarray(y)
    except ValueError:
        array = np.empty((0, 0, 0))  # rows of several lengths: no form
    if array.ndim == 2:
        if array.dtype == object:  # columns of several types
            with contextlib.suppress(TypeError, ValueError):
                array = array.astype(np.float64)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"y: expected a matrix of zeros and ones, found values of the type {array.dtype}")
        return _read_matrix("dense", sparse.csr_array(array), texts)
    if array.ndim == 1 and array.dtype.kind in "biufUO" and all(np.ndim(label) == 0 for label in array):
        _check_count("y", len(array), texts)
        for row, label in enumerate(array.tolist()):
            if label is None or (isinstance(label, float) and math.isnan(label)):
                raise ValueError(f"y[{row}]: expected a label, found {label}; remove the row, or give it a label")
        try:
            classes, columns = np.unique(array, return_inverse=True)
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in array.tolist()}))
            raise ValueError(f"y: expected labels of one type, found {kinds}") from None
        return Targets("single", classes, _indicator(np.arange(texts + 1), columns, len(classes)))
    raise ValueError(
        "y: expected a matrix of zeros and ones with the axes (text, label), a list of lists of strings, or one label "
        f"for each text, found {type(y).__name__}"
    )


def align(targets: Targets, classes: np.ndarray) -> sparse.csr_array:
    """The matrix of other targets, with a column for each of `classes`; other labels are left out.

    Raises:
        ValueError: If a matrix has another number of columns.
    """
    if targets.form in ("sparse", "dense"):
        _check_count("y", targets.matrix.shape[1], len(classes), "columns")
        return targets.matrix
    return _of_lists([targets.classes[row].tolist() for row in targets.rows()], classes)


def as_form(form: Form, classes: np.ndarray, matrix: sparse.csr_array) -> Any:
    """Convert a matrix of zeros and ones to the form that `fit` got. With `single`, each row has one label."""
    match form:
        case "sparse":
            return matrix
        case "dense":
            return matrix.toarray()
        case "lists":
            return [classes[columns].tolist() for columns in np.split(matrix.indices, matrix.indptr[1:-1])]
        case "single":
            return classes[matrix.indices]


def _is_lists(y: Any) -> bool:
    is_rows = isinstance(y, (list, tuple)) or (isinstance(y, np.ndarray) and y.dtype.kind in "OU" and y.ndim in (1, 2))
    return is_rows and all(
        (isinstance(row, (list, tuple, set, frozenset)) or np.ndim(row) == 1)
        and all(isinstance(label, str) for label in row)
        for row in y
    )


def _read_lists(rows: list[list[str]], texts: int) -> Targets:
    _check_count("y", len(rows), texts)
    classes = np.array(sorted({label for row in rows for label in row}), dtype=object)
    return Targets("lists", classes, _of_lists(rows, classes))


def _read_matrix(form: Form, matrix: sparse.csr_array, texts: int) -> Targets:
    _check_count("y", matrix.shape[0], texts)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        wrong = matrix.data[matrix.data != 1][0]
        raise ValueError(f"y: expected a matrix of zeros and ones, found the value {wrong}")
    return Targets(form, np.arange(matrix.shape[1]), matrix.astype(np.int8))


def _of_lists(rows: Sequence[Sequence[Any]], classes: np.ndarray) -> sparse.csr_array:
    """The matrix of the labels of each text; labels that are no class are left out."""
    column_of = {label: column for column, label in enumerate(classes.tolist())}
    columns = [sorted({column_of[label] for label in row if label in column_of}) for row in rows]
    joined = np.array([column for row in columns for column in row], dtype=np.int64)
    return _indicator(np.cumsum([0, *map(len, columns)]), joined, len(classes))


def _indicator(indptr: Int[np.ndarray, " pointer"], columns: Int[np.ndarray, " pair"], labels: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(columns), dtype=np.int8), columns, indptr), shape=(len(indptr) - 1, labels))


def _check_count(name: str, found: int, expected: int, rows: str = "rows, as many as texts in X") -> None:
    if found != expected:
        raise ValueError(f"{name}: expected {expected:,} {rows}, found {found:,}")
