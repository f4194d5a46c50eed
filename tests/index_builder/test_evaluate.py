"""`recollect evaluate`: its metrics, combinations of settings, filtered labels, and labels that are matched by uid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import recollect
from recollect.core.options import resolve_options
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.settings import EvaluateSettings
from recollect.model import open_model
from tests.conftest import TOPICS

NAMES = sorted(TOPICS)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def measure(built: Any, dataset: Path | None = None, **settings: Any) -> list[dict[str, Any]]:
    given = {"dataset": dataset or built.dataset, "store": built.store, "threads": 1} | settings
    return evaluate(EvaluateSettings.model_validate(given)).rows


@pytest.fixture
def dataset(built: Any, tmp_path: Path) -> Path:
    """A copy of the topics that a test may change."""
    return shutil.copytree(built.dataset, tmp_path / "dataset")


def by_hand(built: Any, rows: list[dict[str, Any]], **options: Any) -> dict[str, float]:
    """Compute P@1, P@3, R@10 and nDCG@3 in percent from the predictor's answers."""
    predictor = open_model(built.store, built.version).predictor
    chosen = resolve_options(predictor.defaults, top_k=100, **options)
    answers = predictor.predict([row["text"] for row in rows], chosen).answers
    hits = [[label.uid in row["labels"] for label in answer.labels] for row, answer in zip(rows, answers, strict=True)]
    discounts = 1 / np.log2(np.arange(3) + 2)
    ideal = [discounts[: len(row["labels"])].sum() for row in rows]
    return {
        "P@1": 100 * np.mean([hit[0] for hit in hits]),
        "P@3": 100 * np.mean([sum(hit[:3]) / 3 for hit in hits]),
        "nDCG@3": 100
        * np.mean([discounts[: len(hit)] @ hit[:3] / best for hit, best in zip(hits, ideal, strict=True)]),
        "R@10": 100 * np.mean([sum(hit[:10]) / len(row["labels"]) for hit, row in zip(hits, rows, strict=True)]),
    }


@pytest.mark.parametrize("options", [{}, {"lambda_": 0.0}, {"lambda_": 1.0}, {"temperature": 1.0, "top_b": 5}])
def test_metrics_equal_the_metrics_of_the_predictors_answers(built: Any, options: dict[str, float]) -> None:
    (row,) = measure(built, **{name.rstrip("_"): [value] for name, value in options.items()})
    expected = by_hand(built, read(built.dataset / "test.jsonl"), **options)
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["P@1"] > 50


def test_separate_memories_mix_the_answers_of_both_ends_of_lambda(built: Any) -> None:
    rows = measure(built, **{"lambda": [0, 0.3, 1], "separate_memories": True})
    assert [(row["lambda"], row["memories"]) for row in rows] == [
        (lambda_, memories) for lambda_ in (0, 0.3, 1) for memories in ("joint", "separate")
    ]
    for joint, separate in (rows[:2], rows[4:]):  # with one memory, both are the same
        assert separate | {"memories": "joint"} == joint
    tests, predictor = read(built.dataset / "test.jsonl"), open_model(built.store, built.version).predictor
    ends = [
        predictor.predict([row["text"] for row in tests], resolve_options(predictor.defaults, top_k=100, lambda_=end))
        for end in (1.0, 0.0)
    ]
    firsts = []
    for row, *answers in zip(tests, *(end.answers for end in ends), strict=True):
        scores: dict[str, float] = {}
        for weight, answer in zip((0.3, 0.7), answers, strict=True):
            for label in answer.labels:
                scores[label.uid] = scores.get(label.uid, 0) + weight * label.score
        firsts.append(max(scores, key=scores.__getitem__) in row["labels"])
    assert rows[2]["P@1"] > rows[3]["P@1"] == pytest.approx(100 * np.mean(firsts))
    assert "memories" not in measure(built)[0]


def test_filtered_labels_are_removed_and_later_labels_move_up(built: Any, dataset: Path) -> None:
    labels, tests = [row["uid"] for row in read(dataset / "labels.jsonl")], read(dataset / "test.jsonl")
    (plain,) = measure(built, dataset)
    pairs = [f"{row} {labels.index(test['labels'][0])}\n" for row, test in enumerate(tests)]
    (dataset / "filter_labels_test.txt").write_text("".join(pairs))
    (filtered,) = measure(built, dataset)
    assert plain["P@1"] > 0 == filtered["P@1"] == filtered["R@100"]
    wrong = [(labels.index(test["labels"][0]) + 1) % len(labels) for test in tests]
    (dataset / "filter_labels_test.txt").write_text("".join(f"{row} {label}\n" for row, label in enumerate(wrong)))
    (moved,) = measure(built, dataset)
    assert moved["P@3"] >= plain["P@3"]


def test_labels_in_another_order_are_matched_by_uid(built: Any, dataset: Path) -> None:
    write(dataset / "labels.jsonl", read(dataset / "labels.jsonl")[::-1])
    assert measure(built, dataset) == measure(built)


@pytest.fixture
def numbered(built: Any, quick_road_export: None, tmp_path: Path) -> Path:
    """A store with a bundle of the topics in PECOS's layout, whose uids are row numbers."""
    recollect.train(write_numbered(tmp_path / "numbered", NAMES), out=tmp_path / "run", epochs=0)
    recollect.build(tmp_path / "run", store=tmp_path / "store", index="flat", lexical="off", activate=True)
    return tmp_path / "store"


def write_numbered(folder: Path, names: list[str]) -> Path:
    """Write the topics with the labels in this order."""
    folder.mkdir()
    texts = [(name, text) for name in NAMES for text in TOPICS[name]]
    (folder / "Y.txt").write_text("".join(f"{name}\n" for name in names))
    matrix = sparse.csr_matrix([[name == label for label in names] for name, _ in texts], dtype=np.float32)
    for split, start in (("trn", ""), ("tst", "a ")):
        (folder / f"X.{split}.txt").write_text("".join(f"{start}{text}\n" for _, text in texts))
        sparse.save_npz(folder / f"Y.{split}.npz", matrix)
    return folder


def test_row_numbers_of_labels_in_another_order_are_refused(
    numbered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = {
        "reversed": NAMES[::-1],
        "two swapped": [NAMES[1], NAMES[0], *NAMES[2:]],
        "one more at the beginning": ["aaa", *NAMES],
        "others": [f"other {name}" for name in NAMES],
    }
    for name, names in orders.items():
        dataset = write_numbered(tmp_path / name, names)
        assert recollect.main(["evaluate", str(dataset), "--store", str(numbered)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "row numbers: expected the labels in the order of the version, found another text of " in err


def test_changed_texts_of_labels_are_reported_and_measured(
    numbered: Path, built: Any, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_numbered(tmp_path / "corrected", ["corrected", *NAMES[1:], "one more at the end"])
    (row,) = measure(built, tmp_path / "corrected", store=numbered, compare="current")
    assert capsys.readouterr().err.count(f"found another text of 1 of {len(NAMES)} labels in version") == 2
    assert row["P@1"] > 0
    labels = read(dataset / "labels.jsonl")
    others = [{"uid": row["uid"], "text": labels[-1 - n]["text"]} for n, row in enumerate(labels)]
    write(dataset / "labels.jsonl", others)
    assert measure(built, dataset) == measure(built)
    assert f"found another text of {len(labels)} of {len(labels)} labels in version" in capsys.readouterr().err


def test_true_labels_that_the_bundle_lacks_are_counted_as_not_found(
    built: Any, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(dataset / "labels.jsonl", [{"uid": "New", "text": "new"}, *read(dataset / "labels.jsonl")])
    tests = read(dataset / "test.jsonl")
    write(dataset / "test.jsonl", [row | {"labels": [*row["labels"], "New"]} for row in tests])
    (row,), (plain,) = measure(built, dataset), measure(built)
    assert (row["P@1"], row["R@10"]) == pytest.approx((plain["P@1"], plain["R@10"] / 2))
    said = capsys.readouterr().err
    assert f"{len(tests)} of {2 * len(tests)} true labels (50%) are not in the memory, so no answer has them" in said


def test_dataset_without_a_label_of_the_bundle_is_rejected(
    built: Any, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("labels", "train", "test"):
        path = dataset / f"{name}.jsonl"
        rows = [row | {"uid": f"other {row['uid']}", "labels": []} for row in read(path)]
        write(path, [{key: row[key] for key in ("uid", "text")} if name == "labels" else row for row in rows])
    assert recollect.main(["evaluate", str(dataset), "--store", str(built.store)]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "expected at least one label of the bundle, found none" in err


def test_test_texts_without_a_true_label_are_counted(
    built: Any, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read(dataset / "test.jsonl")
    write(dataset / "test.jsonl", [row | {"labels": []} for row in rows[:2]] + rows[2:])
    assert recollect.main(["evaluate", str(dataset), "--store", str(built.store)]) == 0
    assert f"{dataset}: 2 of 7 test texts have no true label and score 0\n" in capsys.readouterr().err


def test_test_split_without_labels_is_rejected(built: Any, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(dataset / "test.jsonl", [row | {"labels": []} for row in read(dataset / "test.jsonl")])
    assert recollect.main(["evaluate", str(dataset), "--store", str(built.store)]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "expected test texts with labels, found 7 texts without any; add the true labels" in err


@pytest.mark.parametrize(
    "flags",
    [["--lambda", "0,1.5"], ["--propensity", "1"], ["--version", "nowhere"], ["--version", "../x"]],
)
def test_error_names_the_wrong_flag(built: Any, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert recollect.main(["evaluate", str(built.dataset), "--store", str(built.store), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1), err
    assert flags[0].strip("-") in err


def test_row_with_the_default_votes_measures_probabilities(built: Any, with_probabilities: Path) -> None:
    usual, other = measure(built, store=with_probabilities, **{"lambda": [0.5, 0.25]})
    (plain,) = measure(built)
    more, intervals = usual.pop("intervals"), plain.pop("intervals")
    assert {name: usual[name] for name in plain} == plain
    assert {name: more[name] for name in intervals} == intervals
    assert list(usual)[len(plain) :] == ["ECE@1", "ECE@5", "Brier", "F1 assigned", "F1 best k", "best k"]
    assert list(more)[len(intervals) :] == ["ECE@1", "ECE@5", "Brier", "F1 assigned", "F1 best k"]
    assert "Brier" not in other
    answers = open_model(with_probabilities).answer([row["text"] for row in read(built.dataset / "test.jsonl")])
    errors = 0.0
    for row, answer in zip(read(built.dataset / "test.jsonl"), answers, strict=True):
        assert len(answer.labels) == 8  # of 8 labels
        errors += sum(((label.probability or 0) - (label.uid in row["labels"])) ** 2 for label in answer.labels)
    assert usual["Brier"] == pytest.approx(errors / len(answers), abs=1e-6)


def test_coverage_statements_are_checked_on_the_test_texts(
    built: Any, with_probabilities: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recollect.main(["evaluate", str(built.dataset), "--store", str(with_probabilities)]) == 0
    first, last = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith("probability >= 0.4000: ")
    assert last.startswith("probability >= 0.0100: 100.0% of the true labels (expected 90%), among ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--csv", "--json"], "--csv: expected one form of the output, found --json"),
        (["--csv", "--latex"], "--latex: expected one form of the output, found --csv"),
        (["--csv", "--wide"], "--wide: expected a table, because CSV has all columns, found --csv"),
        (["--latex", "--by", "x"], "--by: expected the table, --json or --report, found --latex"),
        (["--csv", "--deciles"], "--deciles: expected the table or --json, found --csv"),
    ],
)
def test_flag_without_an_effect_on_the_form_of_the_output_is_refused(
    built: Any, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert recollect.main(["evaluate", str(built.dataset), "--store", str(built.store), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"recollect evaluate: {message}; omit the flag\n")
