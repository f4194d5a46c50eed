"""Report of a comparison: tables, Markdown, HTML and plots."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from recollect.index_builder.compare.comparison import Comparison
from recollect.index_builder.compare.plots import draw_plots
from recollect.index_builder.compare.report import html_report, markdown_report, markdown_table
from recollect.index_builder.compare.tables import Table, plain_table, quality_table, ranked_table
from tests.index_builder.comparisons import results_of

SIZES = np.array([1, 1, 2])


@pytest.fixture
def comparison() -> Comparison:
    results = [
        results_of("untrained", [40.0]),
        results_of("rae", [50.0, 52.0], 10.0, ranked={"nDCG@5": 60.0}),
        results_of("prime", [54.0, 55.0], 900.0, hits=[128, 192, 128]),
    ]
    return Comparison.of("Methods compared: a <b> & c", "nDCG@5", results, SIZES, {"dataset": "a <b> & c"})


def column(table: Table, heading: str) -> list[tuple[str, bool]]:
    place = table.headings.index(heading)
    return [(row[place].text, row[place].best) for row in table.rows]


def test_table_shows_mean_and_deviation_over_seeds_and_marks_the_best_mean(comparison: Comparison) -> None:
    table = quality_table(comparison.results)
    assert [row[0].text for row in table.rows] == ["untrained", "rae", "prime"]
    assert column(table, "nDCG@5") == [("40.00", False), ("51.00 ± 1.41", False), ("54.50 ± 0.71", True)]


def test_table_marks_the_lowest_cost_as_best_and_shows_a_missing_figure_as_a_dash(comparison: Comparison) -> None:
    table = quality_table(comparison.results)
    assert column(table, "seconds") == [("-", False), ("10.5 ± 0.7", True), ("900.5 ± 0.7", False)]
    assert column(table, "peak MiB")[1] == ("512 ± 0", True)
    assert column(table, "parameters")[2] == ("1,234,567 ± 0", True)
    assert column(table, "F1@5 head") == [("-", False)] * 3


def test_table_shows_the_tuned_settings_of_each_seed_and_marks_none_as_best(comparison: Comparison) -> None:
    table = quality_table(comparison.results)
    assert column(table, "λ") == [("0.5", False), ("0.5 / 0.5", False), ("0.5 / 0.5", False)]
    assert column(table, "b")[0] == ("200", False)


def test_table_of_rankers_shows_their_gain_and_leaves_out_runs_without_one(comparison: Comparison) -> None:
    table = ranked_table(comparison.results)
    assert column(table, "nDCG@5") == [("-", False), ("60.00 ± 0.00", False), ("-", False)]
    assert column(table, "ranker adds to nDCG@5")[1][0] == "+9.00 ± 1.41"
    without = Comparison.of("", "nDCG@5", [comparison.results[0], comparison.results[2]], SIZES, {})
    headings = [[section.heading for section in each.sections({})] for each in (comparison, without)]
    assert [("In order of probability" in each) for each in headings] == [True, False]


def test_table_of_label_keys_shows_the_gain_from_the_whole_memory(comparison: Comparison) -> None:
    table = plain_table(comparison.results)
    assert column(table, "nDCG@5")[0] == ("39.00", False)
    assert column(table, "memory adds to nDCG@5")[0] == ("+1.00", True)


def test_significance_test_of_the_best_two_averages_scores_over_seeds(comparison: Comparison) -> None:
    assert comparison.best == ("prime", "rae")
    tests = {test.metric: test for test in comparison.tests}
    # In both seeds, `rae` finds a true label at rank 1 for the first query, at rank 2 for the second query, and no true
    # label for the third query. `prime` finds a true label at rank 1 for every query, and also at rank 2 for one query.
    assert tests["P@1"].difference == pytest.approx(100 * (3 - 1) / 3)
    assert tests["P@3"].difference == pytest.approx(100 * (4 - 2) / 9)


def test_html_report_is_well_formed_and_needs_no_other_file(comparison: Comparison) -> None:
    plots = draw_plots(comparison.results)
    written = html_report(comparison, plots)
    root = ElementTree.fromstring(written.removeprefix("<!DOCTYPE html>"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "link", "img", "image", "iframe", "object"}
    assert set(re.findall(r"https?://[^\"\s]*", written)) == {"http://www.w3.org/2000/svg"}  # no browser downloads it


def test_tables_and_plots_of_the_html_report_have_captions_and_roles(comparison: Comparison) -> None:
    written = html_report(comparison, draw_plots(comparison.results))
    root = ElementTree.fromstring(written.removeprefix("<!DOCTYPE html>"))
    assert root.findtext("head/title") == root.findtext("body/main/h1") == "Methods compared: a <b> & c"
    tables = root.findall(".//table")
    assert len(tables) == 7
    for table in tables:
        assert table.findtext("caption")
        assert {head.get("scope") for head in table.findall("thead/tr/th")} == {"col"}
        assert all(row[0].tag == "th" and row[0].get("scope") == "row" for row in table.findall("tbody/tr"))
    plots = list(root.iter("{http://www.w3.org/2000/svg}svg"))
    assert [element.get("role") for element in plots] == ["img"] * 4
    assert plots[0].findtext("{http://www.w3.org/2000/svg}title") == "Quality against training time"


def test_plots_name_every_contestant_and_axis(comparison: Comparison) -> None:
    plots = draw_plots(comparison.results)
    assert list(plots) == ["time", "lambda", "lambda_p1", "segments"]
    for plot in plots.values():
        root = ElementTree.fromstring(plot.svg)
        texts = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"untrained", "rae", "prime"} <= texts
        assert texts & {"training time in seconds", "macro F1@5, in percent", "nDCG@5, in percent", "P@1, in percent"}


def test_equal_results_give_equal_plots(comparison: Comparison) -> None:
    assert draw_plots(comparison.results) == draw_plots(comparison.results)


def test_plot_of_training_times_is_left_out_if_no_contestant_was_trained() -> None:
    plots = draw_plots([results_of("untrained", [40.0]), results_of("rae", [50.0])])
    assert list(plots) == ["lambda", "lambda_p1", "segments"]


def test_markdown_report_has_every_section_and_shows_the_best_figures_in_bold(comparison: Comparison) -> None:
    plots = draw_plots(comparison.results)
    written = markdown_report(comparison, plots)
    assert [line for line in written.splitlines() if line.startswith("## ")] == [
        *(f"## {section.heading}" for section in comparison.sections(plots)),
        "## How to repeat this comparison",
    ]
    assert "**54.50 ± 0.71**" in written
    assert "![The λ curve](plots/lambda.svg)\n\n![The λ curve](plots/lambda_p1.svg)" in written
    assert "- dataset: a <b> & c" in written
    lines = markdown_table(quality_table(comparison.results)).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len({line.count("|") for line in lines}) == 1


def test_json_report_has_all_figures_except_the_figures_of_single_queries(comparison: Comparison) -> None:
    found = comparison.as_json()
    assert [each["name"] for each in found["contestants"]] == ["untrained", "rae", "prime"]
    first = found["contestants"][1]["runs"][0]
    assert set(first) == {"seed", "answering", "tuned", "plain", "views", "ranked", "curve", "measured", "learning"}
    assert found["significance"]["best"] == ["prime", "rae"]
    assert [test["metric"] for test in found["significance"]["tests"]] == ["P@1", "P@3", "P@5", "nDCG@5"]
