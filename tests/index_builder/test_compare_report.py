"""The report of standings that nobody had to train: tables, page and plots."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from index_builder.compare.markdown import markdown, markdown_table
from index_builder.compare.page import page
from index_builder.compare.plots import plots
from index_builder.compare.report import Comparison
from index_builder.compare.tables import Table, plain_table, quality_table
from tests.index_builder.comparisons import standing

SIZES = np.array([1, 1, 2])


@pytest.fixture
def comparison() -> Comparison:
    standings = [
        standing("untrained", [40.0]),
        standing("rae", [50.0, 52.0], 10.0),
        standing("prime", [54.0, 55.0], 900.0, hits=[128, 192, 128]),
    ]
    return Comparison.of("Methods compared: a <b> & c", "nDCG@5", standings, SIZES, {"dataset": "a <b> & c"})


def column(table: Table, heading: str) -> list[tuple[str, bool]]:
    place = table.headings.index(heading)
    return [(row[place].text, row[place].best) for row in table.rows]


def test_seeds_are_told_by_mean_and_deviation_and_the_best_mean_is_marked(comparison: Comparison) -> None:
    table = quality_table(comparison.standings)
    assert [row[0].text for row in table.rows] == ["untrained", "rae", "prime"]
    assert column(table, "nDCG@5") == [("40.00", False), ("51.00 ± 1.41", False), ("54.50 ± 0.71", True)]


def test_of_costs_the_least_is_the_best_and_what_was_not_measured_is_a_dash(comparison: Comparison) -> None:
    table = quality_table(comparison.standings)
    assert column(table, "seconds") == [("-", False), ("10.5 ± 0.7", True), ("900.5 ± 0.7", False)]
    assert column(table, "peak MiB")[1] == ("512 ± 0", True)
    assert column(table, "parameters")[2] == ("1,234,567 ± 0", True)
    assert column(table, "F1@5 head") == [("-", False)] * 3


def test_what_tuning_chose_is_told_for_each_seed_and_never_the_best(comparison: Comparison) -> None:
    table = quality_table(comparison.standings)
    assert column(table, "λ") == [("0.5", False), ("0.5 / 0.5", False), ("0.5 / 0.5", False)]
    assert column(table, "b")[0] == ("200", False)


def test_the_second_table_tells_what_the_memory_adds(comparison: Comparison) -> None:
    table = plain_table(comparison.standings)
    assert column(table, "nDCG@5")[0] == ("39.00", False)
    assert column(table, "memory adds to nDCG@5")[0] == ("+1.00", True)


def test_the_best_two_are_tested_over_scores_averaged_over_seeds(comparison: Comparison) -> None:
    assert comparison.best == ("prime", "rae")
    tests = {test.metric: test for test in comparison.tests}
    # rae hits with its first label, with its second, not at all; prime with its first always, once with its second.
    assert tests["P@1"].difference == pytest.approx(100 * (3 - 1) / 3)
    assert tests["P@3"].difference == pytest.approx(100 * (4 - 2) / 9)


def test_the_page_is_well_formed_and_needs_nothing_else(comparison: Comparison) -> None:
    drawn = plots(comparison.standings)
    written = page(comparison, drawn)
    root = ElementTree.fromstring(written.removeprefix("<!DOCTYPE html>"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "link", "img", "image", "iframe", "object"}
    names = set(re.findall(r"https?://[^\"\s]*", written))
    assert names <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}  # of namespaces, fetched by nobody
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    targets = set(re.findall(r"(?:href=\"|url\()#([^\")]*)", written))
    assert targets
    assert targets <= set(ids)


def test_the_page_says_what_its_tables_and_plots_are(comparison: Comparison) -> None:
    written = page(comparison, plots(comparison.standings))
    root = ElementTree.fromstring(written.removeprefix("<!DOCTYPE html>"))
    assert root.findtext("head/title") == root.findtext("body/main/h1") == "Methods compared: a <b> & c"
    tables = root.findall(".//table")
    assert len(tables) == 3
    for table in tables:
        assert table.findtext("caption")
        assert {head.get("scope") for head in table.findall("thead/tr/th")} == {"col"}
        assert all(row[0].tag == "th" and row[0].get("scope") == "row" for row in table.findall("tbody/tr"))
    drawn = list(root.iter("{http://www.w3.org/2000/svg}svg"))
    assert [element.get("role") for element in drawn] == ["img"] * 3
    assert drawn[0].get("aria-label") == "Quality against training time"


def test_the_pages_plots_take_its_colours(comparison: Comparison) -> None:
    written = page(comparison, plots(comparison.standings))
    assert "color-scheme: light dark" in written
    assert not re.search("#(000000|ffffff)", written)


def test_plots_name_every_contestant_and_their_axes(comparison: Comparison) -> None:
    drawn = plots(comparison.standings)
    assert list(drawn) == ["time", "lambda", "segments"]
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        told = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"untrained", "rae", "prime"} <= told
        assert told & {"training time in seconds", "macro F1@5 on the test split, in percent", "P@1"}


def test_the_same_figures_make_the_same_plots(comparison: Comparison) -> None:
    assert plots(comparison.standings) == plots(comparison.standings)


def test_without_a_timed_training_there_is_no_plot_of_time() -> None:
    assert list(plots([standing("untrained", [40.0]), standing("rae", [50.0])])) == ["lambda", "segments"]


def test_markdown_holds_every_section_and_bold_stands_for_the_best(comparison: Comparison) -> None:
    drawn = plots(comparison.standings)
    written = markdown(comparison, drawn)
    assert [line for line in written.splitlines() if line.startswith("## ")] == [
        *(f"## {section.heading}" for section in comparison.sections(drawn)),
        "## How it was made",
    ]
    assert "**54.50 ± 0.71**" in written
    assert "![The λ curve](plots/lambda.svg)" in written
    assert "- dataset: a <b> & c" in written
    lines = markdown_table(quality_table(comparison.standings)).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len({line.count("|") for line in lines}) == 1


def test_json_holds_all_figures_but_no_querys(comparison: Comparison) -> None:
    found = comparison.as_json()
    assert [each["name"] for each in found["contestants"]] == ["untrained", "rae", "prime"]
    first = found["contestants"][1]["runs"][0]
    assert set(first) == {"seed", "answering", "tuned", "plain", "curve", "measured", "learning"}
    assert found["significance"]["best"] == ["prime", "rae"]
    assert [test["metric"] for test in found["significance"]["tests"]] == ["P@1", "P@3", "P@5", "nDCG@5"]
