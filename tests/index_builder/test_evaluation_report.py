"""`recollect evaluate --report` and `--compare`: the page, its folder, and the comparison of two versions."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.index_builder.evaluation.evaluate import Evaluation, evaluate
from recollect.index_builder.settings import EvaluateSettings
from tests.service.http_helpers import add_version, copy_store

SECTIONS = ["Quality", "λ and recall", "Rare and frequent labels", "Hardest labels", "Hardest texts"]
# Elements that never have an end tag in HTML.
VOID = {"meta"}


class Page(HTMLParser):
    """The headings, tables and summaries of a page; every element must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
            self.found.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.found[self.open[-1]][-1] += data


def measure(built: Any, **settings: Any) -> Evaluation:
    given = {"dataset": built.dataset, "store": built.store, "threads": 1} | settings
    return evaluate(EvaluateSettings.model_validate(given))


def run(built: Any, *flags: object, dataset: Path | None = None) -> int:
    return recollect.main(["evaluate", str(dataset or built.dataset), "--store", str(built.store), *map(str, flags)])


def test_page_has_every_section_and_a_table_for_each_chart(built: Any, tmp_path: Path) -> None:
    evaluation = measure(built, report=tmp_path / "new" / "report")
    page = Page(tmp_path / "new" / "report" / "report.html")
    assert page.found["h2"] == SECTIONS
    assert sum(text.startswith("Table: ") for text in page.found["summary"]) == len(page.found["svg"]) == 4
    values = page.found["td"]
    assert f"{evaluation.rows[0]['nDCG@5']:.2f}" in values
    assert sorted(each.name for each in (tmp_path / "new" / "report").iterdir()) == ["report.html"]


def test_page_refers_to_no_other_file(built: Any, tmp_path: Path) -> None:
    measure(built, report=tmp_path)
    page, text = Page(tmp_path / "report.html"), (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not {name for name, _ in page.attributes} & {"src", "href", "xlink:href", "onclick", "onload"}
    assert "script" not in page.found
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_lambda_curve_has_the_metrics_of_separate_evaluations(built: Any, tmp_path: Path) -> None:
    measure(built, report=tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    table = text[text.index("<caption>Quality by λ") :].split("</table>")[0]
    rows = [re.sub("<[^>]*>", " ", row).split() for row in table.split('<tr role="row">')[1:]]
    by_lambda = {float(row[0]): [float(value) for value in row[1:]] for row in rows}
    for each in measure(built, **{"lambda": [0, 0.2, 1]}).rows:
        expected = [each[name] for name in ("P@1", "nDCG@5", "PSP@5")]
        assert by_lambda[each["lambda"]] == pytest.approx(expected, abs=0.006)


def test_hardest_texts_show_ranks_and_votes(built: Any, tmp_path: Path) -> None:
    """A text with the label of another one is the hardest, and its table names both labels."""
    dataset = shutil.copytree(built.dataset, tmp_path / "dataset")
    rows = [json.loads(line) for line in (dataset / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[0]["labels"], right = rows[3]["labels"], rows[0]["labels"]
    rows[0]["text"] += " <script>alert(1)</script> &amp;"
    (dataset / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    measure(built, dataset=dataset, report=tmp_path / "report")
    page = Page(tmp_path / "report" / "report.html")
    texts = [text for text in page.found["summary"] if not text.startswith(("Table: ", "All "))]
    assert texts[0] == rows[0]["text"]
    names = {
        row["uid"]: row["text"]
        for row in map(json.loads, (dataset / "labels.jsonl").read_text(encoding="utf-8").splitlines())
    }
    assert names[right[0]] in page.found["td"]
    assert names[rows[0]["labels"][0]] in page.found["strong"]
    assert any("the label's text" in cell for cell in page.found["td"])


def test_page_with_probabilities_has_a_diagram(built: Any, with_probabilities: Path, tmp_path: Path) -> None:
    measure(built, store=with_probabilities, report=tmp_path / "report")
    page = Page(tmp_path / "report" / "report.html")
    assert "Probabilities" in page.found["h2"]
    assert "Share of the true labels above a probability" in page.found["summary"]
    assert "Reliability of the probabilities: 7 texts" in (tmp_path / "report" / "reliability.svg").read_text()


def test_existing_folder_keeps_its_other_files_and_an_earlier_page_is_replaced(built: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    measure(built, report=tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "report.html"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert Page(tmp_path / "report.html").found["h2"] == SECTIONS


@pytest.mark.parametrize("place", ["file", "file/below", "with-page"])
def test_wrong_folder_is_refused_before_the_work(
    built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "with-page" / "report.html").mkdir(parents=True)
    monkeypatch.setattr("recollect.index_builder.evaluation.evaluate.open_model", None)
    assert run(built, "--report", tmp_path / place) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"--report {tmp_path / place}: expected" in err
    assert "choose another folder" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_rights_is_refused(built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert run(built, "--report", tmp_path / "report") == 2
    assert "without the right to write" in capsys.readouterr().err


def test_failed_evaluation_leaves_no_folder(built: Any, tmp_path: Path) -> None:
    assert run(built, "--report", tmp_path / "report", "--version", "nowhere") == 2
    assert not (tmp_path / "report").exists()


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
    page = Page(tmp_path / "report" / "report.html")
    assert page.found["h2"] == [SECTIONS[0], "Comparison with other", *SECTIONS[1:]]
    flags = ["evaluate", str(built.dataset), "--store", str(two_versions), "--compare", "other"]
    assert recollect.main(flags) == 0
    assert "compared with other, with its default options:" in capsys.readouterr().out


def test_version_compared_with_itself_does_not_differ(built: Any) -> None:
    found = measure(built, compare="current").comparison
    assert found is not None
    assert {value for name, value in found["differences"].items() if name != "intervals"} == {0}


def test_unknown_version_to_compare_is_refused(built: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(built, "--compare", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
