"""Charts and pages: scales, marks at their places, and text that is never markup."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from recollect.trainer.report.charts import Line, bar_chart, line_chart
from recollect.trainer.report.page import Cell, Section, Table, html_page
from recollect.trainer.report.scale import Axis, Scale

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(\"x\")</script> & 'y'"


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0, 100], [0, 20, 40, 60, 80, 100]),
        ([3.1, 3.4], [3.1, 3.15, 3.2, 3.25, 3.3, 3.35, 3.4]),
        ([-5, 12], [-5, 0, 5, 10, 15]),
        ([7, 7], [6.6, 6.8, 7.0, 7.2, 7.4]),
        ([], [-0.4, -0.2, 0.0, 0.2, 0.4]),
    ],
)
def test_ticks_are_round_numbers_within_the_scale(values: list[float], ticks: list[float]) -> None:
    scale = Scale.of(Axis("x"), values, 0, 10)
    assert [tick for tick in scale.ticks() if min(ticks) <= tick <= max(ticks)] == pytest.approx(ticks)
    assert all(0 <= round(scale(tick), 6) <= 10 for tick in scale.ticks())


def test_logarithmic_axis_gives_equal_ratios_equal_distances() -> None:
    scale = Scale.of(Axis("k", log=True), [1, 100], 0, 10)
    assert scale.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert scale(10) - scale(1) == pytest.approx(scale(100) - scale(10))


def test_markers_are_at_the_places_of_their_points() -> None:
    svg = line_chart(
        "t", [Line("a", [(0, 0), (5, 1), (10, 4)])], Axis("x", least=0, most=10), Axis("y", least=0, most=4)
    )
    places = [
        (float(each.get("cx", "")), float(each.get("cy", "")))
        for each in ElementTree.fromstring(svg).iter(f"{SVG}circle")
    ]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert (y0 - y1) * 4 == pytest.approx(y0 - y2, abs=0.4)


def test_points_without_a_place_on_a_logarithmic_axis_are_left_out() -> None:
    svg = line_chart("t", [Line("a", [(0, 1), (1, 0), (2, 5), (4, 7)])], Axis("x", log=True), Axis("y", log=True))
    assert svg.count("<circle") == 2


def test_bars_have_heights_in_proportion_and_none_for_a_missing_value() -> None:
    svg = bar_chart("t", ["1", "2", "3"], {"a": [1.0, None, 4.0]}, "x", Axis("y", most=4))
    bars = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    first, last = (float(each.get("height", "")) for each in bars)
    assert last == pytest.approx(4 * first, abs=0.5)


def test_chart_without_points_is_valid() -> None:
    for svg in (line_chart("t", [], Axis("x"), Axis("y", log=True)), bar_chart("t", [], {}, "x", Axis("y"))):
        assert texts(svg)[-1] == "t" or "t" in texts(svg)


def test_legend_of_a_single_line_does_not_repeat_the_title() -> None:
    for name, count in (("Loss", 1), ("other", 2)):
        found = texts(line_chart("Loss", [Line(name, [(0, 1), (1, 2)])], Axis("step"), Axis("mean")))
        assert found.count("Loss") + found.count("other") == count


def test_names_beyond_the_ten_colours_have_another_style() -> None:
    svg = line_chart("t", [Line(f"method {each}", [(0, each), (1, each)]) for each in range(11)], Axis("x"), Axis("y"))
    classes = [each.get("class") for each in ElementTree.fromstring(svg).iter(f"{SVG}polyline")]
    assert len(set(classes)) == 11


def test_reference_line_leaves_the_colours_of_the_others_unchanged() -> None:
    """So a method has one colour in all charts of a page."""
    for reference in (False, True):
        first = Line("first", [(0, 1), (1, 2)], reference=reference)
        svg = line_chart("t", [first, Line("second", [(0, 2), (1, 3)])], Axis("x"), Axis("y"))
        assert [each.get("class") for each in ElementTree.fromstring(svg).iter(f"{SVG}polyline")][1] == "line s1"


def test_text_is_never_markup() -> None:
    svg = line_chart(HOSTILE, [Line(f"a {HOSTILE}", [(1, 2)])], Axis(HOSTILE), Axis(HOSTILE))
    assert texts(svg).count(HOSTILE) == 3
    assert f"a {HOSTILE}" in texts(svg)
    table = Table(HOSTILE, [HOSTILE, HOSTILE], [[Cell(HOSTILE), Cell(HOSTILE, best=True)]], texts=(1,))
    page = html_page(HOSTILE, {HOSTILE: HOSTILE}, [Section(HOSTILE, HOSTILE, tables=[table], folded=[table])])
    assert "<script" not in page
    assert 'alert("x")' not in page
