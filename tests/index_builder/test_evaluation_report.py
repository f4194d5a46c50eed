"""`recollect evaluate --report` and `--compare`: the page, its folder, and the comparison of two versions."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import recollect
from recollect.index_builder.evaluation.evaluate import Evaluation, evaluate
from recollect.index_builder.settings import EvaluateSettings
from tests.processes import copy_store
from tests.service.stores import add_version, relabel

SECTIONS = ["Metrics", "Charts", "Hardest labels", "Hardest texts"]


def read(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def cells(page: str) -> list[str]:
    return [html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", page, re.DOTALL)]


def measure(built: Any, **settings: Any) -> Evaluation:
    given = {"dataset": built.dataset, "store": built.store, "threads": 1} | settings
    return evaluate(EvaluateSettings.model_validate(given))


def run(built: Any, *flags: object, dataset: Path | None = None) -> int:
    return recollect.main(["evaluate", str(dataset or built.dataset), "--store", str(built.store), *map(str, flags)])


def test_page_has_every_section_all_metrics_and_the_charts_and_needs_no_other_file(built: Any, tmp_path: Path) -> None:
    evaluation = measure(built, report=tmp_path / "new" / "report")
    page = read(tmp_path / "new" / "report")
    assert re.findall("<h2>(.*?)</h2>", page) == SECTIONS
    assert f"{evaluation.rows[0]['nDCG@5']:.3f}" in cells(page)
    for title in ("Quality by lambda", "Recall of the first k labels", "Recall by label frequency", "Keys that vote"):
        assert title in page
    assert "Reliability" not in page  # the version gives no probabilities
    assert "<script" not in page
    assert all(link.startswith("#") for link in re.findall(r'(?:href|src)="([^"]*)"', page))


def test_hardest_text_is_escaped_and_shows_its_true_labels_and_its_answers(built: Any, tmp_path: Path) -> None:
    """A text with the label of another one is the hardest."""
    dataset = shutil.copytree(built.dataset, tmp_path / "dataset")
    rows = [json.loads(line) for line in (dataset / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[0]["labels"], right = rows[3]["labels"], rows[0]["labels"]
    rows[0]["text"] += " <script>alert(1)</script> &amp;"
    (dataset / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    measure(built, dataset=dataset, report=tmp_path / "report")
    page = read(tmp_path / "report")
    assert "<script" not in page
    found = cells(page[page.index("Hardest texts") :])
    lines = (dataset / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    names = {row["uid"]: row["text"] for row in map(json.loads, lines)}
    assert found[0] == rows[0]["text"]
    assert names[rows[0]["labels"][0]] in found[2]
    assert names[right[0]] in found[3]


def test_page_with_probabilities_has_a_reliability_diagram(
    built: Any, with_probabilities: Path, tmp_path: Path
) -> None:
    measure(built, store=with_probabilities, report=tmp_path)
    assert "Reliability of the probabilities" in read(tmp_path)


@pytest.fixture
def two_versions(built: Any, tmp_path: Path) -> Path:
    """A store with the version of the topics and with a version `other` that answers with lambda 0."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["defaults"]["lambda"] = 0.0

    store = copy_store(built.store, tmp_path / "store")
    add_version(store, built.version, "other", change)
    return store


def test_compare_measures_another_version_on_the_same_texts(
    built: Any, two_versions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure(built, store=two_versions, compare="other", report=tmp_path / "report")
    (plain,) = measure(built, store=two_versions, version="other").rows
    assert found.comparison is not None
    assert (found.comparison["version"], found.comparison["row"]) == ("other", plain)
    assert found.comparison["differences"]["P@1"] == pytest.approx(found.rows[0]["P@1"] - plain["P@1"])
    assert f"{found.comparison['differences']['P@1']:+.3f}" in cells(read(tmp_path / "report"))
    flags = ["evaluate", str(built.dataset), "--store", str(two_versions), "--compare", "other"]
    assert recollect.main(flags) == 0
    assert f"compared with other, with its default options, and the label frequencies of {built.version} in PSP" in (
        capsys.readouterr().out
    )


def test_equal_answers_have_equal_metrics_if_the_other_version_has_other_label_frequencies_and_another_label(
    built: Any, tmp_path: Path
) -> None:
    """With lambda 0, the instances do not change the answers."""
    tests = [json.loads(line) for line in (built.dataset / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    true = {uid for row in tests for uid in row["labels"]}
    uids = [json.loads(line)["uid"] for line in (built.dataset / "labels.jsonl").read_text("utf-8").splitlines()]
    renamed = [uid if uid in true else f"new {uid}" for uid in uids]
    assert renamed != uids

    def grow(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["defaults"]["lambda"] = 0.0
        values = csr_matrix(
            (
                np.ones(manifest["counts"]["pairs"]),
                np.load(folder / "value_indices.npy"),
                np.load(folder / "value_indptr.npy"),
            ),
            shape=(manifest["counts"]["instances"], len(uids)),
        ).tolil()
        values[:, uids.index(tests[0]["labels"][0])] = 1  # every instance votes for one label
        values = values.tocsr()
        for name, pairs in (("value", values), ("voter", values.T.tocsr())):
            np.save(folder / f"{name}_indptr.npy", pairs.indptr.astype(np.int64))
            np.save(folder / f"{name}_indices.npy", pairs.indices.astype(np.int32))
        np.save(folder / "label_counts.npy", values.getnnz(axis=0).astype(np.int32))
        manifest["counts"]["pairs"] = values.nnz
        relabel(renamed)(folder, manifest)

    store = copy_store(built.store, tmp_path / "store")
    add_version(store, built.version, "other", grow)
    settings = {"store": store, "lambda": [0.0]}
    found, alone = measure(built, **settings, compare="other"), measure(built, **settings, version="other").rows[0]
    assert found.comparison is not None
    (row,), other = found.rows, found.comparison["row"]
    assert {name for name in row if other[name] != row[name]} == set()
    gains = found.comparison["differences"]
    assert {value for name, value in gains.items() if name != "intervals"} == {0}
    # Macro F1 is summed in the order of the labels, which is another one there.
    assert max(abs(end) for ends in gains["intervals"].values() for end in ends) < 1e-9
    assert alone["PSP@5"] != row["PSP@5"]  # its own label frequencies are other ones
    assert alone["P@5"] == row["P@5"]
