"""`recollect evaluate` prints a table that a new user understands; also as CSV and for LaTeX."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.settings import EvaluateSettings
from tests.index_builder.reranker.conftest import RankedRun


@pytest.fixture
def dataset(ranked: RankedRun, tmp_path: Path) -> Path:
    """A copy of the dataset of the ranked run that a test may change."""
    return shutil.copytree(ranked.run.parent / "dataset", tmp_path / "dataset")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def printed(capsys: pytest.CaptureFixture[str], *command: Any) -> list[str]:
    assert recollect.main(["evaluate", *map(str, command)]) == 0
    return capsys.readouterr().out.splitlines()


def test_table_fits_100_columns_and_explains_each_column(
    ranked: RankedRun, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--lambda", "0,0.25", "--temperature", "0.0333333,1", "--top-b", "5,400", "--separate-memories"]
    command = dataset, "--store", ranked.store, *grid, "--intervals"
    lines, wide = printed(capsys, *command), printed(capsys, *command, "--wide")
    assert max(map(len, lines)) <= 100
    for output in (lines, wide):
        start = output.index("") + 1
        headings = output[start].split("  ")
        columns = [name.strip() for name in headings if name.strip()]
        assert columns[0] == "lambda"
        legend = output[output.index("", start) + 1 :]
        explained = [line.partition("  ") for line in legend[: legend.index("")]]
        for column in columns:  # "P@5" is explained as P@k
            kind = re.sub(r"@\d+( .*)?$", "@k", column)
            assert any(name == kind and meaning.strip() for name, _, meaning in explained), column
        rows = [line.split()[0] for line in output[start + 1 : output.index("", start)]]
        assert rows[:5] == ["chosen", "95%", "95%", "votes", "95%"]
        assert rows[-1] == "frequent"
    shown, all_columns = set(lines[lines.index("") + 1].split()), wide[wide.index("") + 1].split()
    assert shown < {*all_columns}
    (left_out,) = [line for line in lines if line.startswith("--wide adds ")]
    assert "P@3, " in left_out


def test_csv_has_the_figures_of_json_and_latex_those_of_the_table(
    ranked: RankedRun, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = dataset, "--store", ranked.store, "--lambda", "0,0.5"
    (line,) = printed(capsys, *command, "--json")
    found = json.loads(line)
    rows = [*csv.DictReader(printed(capsys, *command, "--csv", "--intervals"))]
    assert [row["row"] for row in rows] == ["chosen", "votes alone", "", "", "frequent labels"]
    wanted = [found["chosen"], found["votes"], found["rows"][0], found["rows"][-1], found["popularity"]]
    for row, expected in zip(rows, wanted, strict=True):
        for name, value in expected.items():
            if name == "intervals":
                assert {(float(row[f"{each} from"]), float(row[f"{each} to"])) for each in value} == {
                    tuple(ends) for ends in value.values()
                }
            else:
                assert row[name] == ("" if value is None else str(value))
    latex, table = printed(capsys, *command, "--latex"), printed(capsys, *command)
    assert (latex[1], latex[-1]) == (r"\begin{tabular}{lrrrrrrrrr}", r"\end{tabular}")
    chosen = next(line for line in latex if line.startswith("chosen"))
    assert chosen.removesuffix(r" \\").split(" & ") == next(line for line in table if line.startswith("chosen")).split()


def test_summary_states_the_limit_and_the_figures_of_votes_and_of_frequent_labels(
    ranked: RankedRun, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests, labels = read(dataset / "test.jsonl"), [row["uid"] for row in read(dataset / "labels.jsonl")]
    tests[0]["labels"] = labels[:7]
    (dataset / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))
    counts = Counter(label for row in read(dataset / "train.jsonl") for label in row["labels"])
    frequent = sorted(labels, key=lambda label: (-counts[label], labels.index(label)))
    (dataset / "filter_labels_test.txt").write_text(f"1 {labels.index(frequent[0])}\n")
    answers = [frequent[:5], frequent[1:6], *[frequent[:5]] * (len(tests) - 2)]
    texts = zip(answers, tests, strict=True)
    popular = 100 * np.mean([len({*answer} & {*row["labels"]}) / 5 for answer, row in texts])
    limit = 100 * np.mean([min(5, len(row["labels"])) / 5 for row in tests])
    found = evaluate(EvaluateSettings(dataset=dataset, store=str(ranked.store)))
    assert found.popularity["P@5"] == pytest.approx(popular)
    assert found.votes is not None
    assert (found.chosen["order"], found.votes["order"]) == ("probability", "score")
    mean = np.mean([len(row["labels"]) for row in tests])
    text = " ".join(printed(capsys, dataset, "--store", ranked.store))
    assert (
        f"A test text has {mean:.2f} true labels on average, and at most 7, so the best possible P@5 is {limit:.2f}: "
        f"the version reaches {found.chosen['P@5']:.2f}, the votes alone {found.votes['P@5']:.2f}, and the 5 labels "
        f"with the most training texts, as the answer to every text, {popular:.2f}."
    ) in text
