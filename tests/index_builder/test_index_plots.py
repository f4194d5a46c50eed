"""Plots of `--report`: valid SVG that names every family and the chosen point."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import recollect
from recollect.index_builder.index_plots import write_index_plots
from recollect.service.bundle.manifest import Point

FAMILIES = ["Flat", "HNSW32,SQ8", "IVF894,RaBitQ4", "IVF894,PQ192x4fs,Refine(SQ8)"]


def curve(factory: str, keys: int) -> list[Point]:
    plain = {"factory": factory, "keys": keys, "bytes_per_key": 656.4}
    return [
        Point(**plain, effort=effort, refine=refine, recall=1 - 1 / (effort + refine), milliseconds=effort / 100)
        for effort in (200, 400)
        for refine in (1.5, 4)
    ]


def texts(path: Path) -> list[str]:
    """All texts in an SVG file."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def measured() -> tuple[dict[str, Point], dict[str, list[Point]]]:
    """For labels and for instances: measurements of four families on a sample, and of one family on all keys."""
    curves = {
        part: [*(point for factory in FAMILIES for point in curve(factory, 50_000)), *curve("HNSW32,SQ8", keys)]
        for part, keys in (("labels", 1_300_000), ("instances", 2_200_000))
    }
    return {part: points[-2] for part, points in curves.items()}, curves


def test_plots_of_labels_and_instances_name_every_family_and_the_chosen_index(
    tmp_path: Path, measured: tuple[dict[str, Point], dict[str, list[Point]]]
) -> None:
    write_index_plots(tmp_path, *measured, top_b=200, recall_target=0.98)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["instances.svg", "labels.svg", "report.html"]
    for part, keys in (("labels", "1,300,000"), ("instances", "2,200,000")):
        written = texts(tmp_path / f"{part}.svg")
        assert {f"{factory}, 50,000 keys" for factory in FAMILIES} <= set(written)
        assert f"HNSW32,SQ8, {keys} keys" in written
        assert f"Indexes of the {part}: {keys} keys" in written
        assert "chosen: HNSW32,SQ8, effort 400, 656 bytes a key" in written
        assert "target: 0.98" in written


def test_page_of_the_indexes_has_both_charts_and_marks_the_chosen_points(
    tmp_path: Path, measured: tuple[dict[str, Point], dict[str, list[Point]]]
) -> None:
    write_index_plots(tmp_path, *measured, top_b=200, recall_target=0.98)
    root = ElementTree.fromstring((tmp_path / "report.html").read_text().removeprefix("<!DOCTYPE html>"))
    assert len(root.findall(".//figure")) == 2
    for table in root.iter("table"):
        chosen = [row for row in table.iter("tr") if row.find(".//strong") is not None]
        assert [cell.findtext("strong") for cell in chosen[0]][:3] == [
            "HNSW32,SQ8",
            "1,300,000" if "labels" in table.findtext("caption", "") else "2,200,000",
            "400",
        ]


def test_axes_of_an_index_plot_have_names_and_units(
    tmp_path: Path, measured: tuple[dict[str, Point], dict[str, list[Point]]]
) -> None:
    write_index_plots(tmp_path, *measured, top_b=200, recall_target=0.98)
    written = texts(tmp_path / "labels.svg")
    assert "search time of a single query on one thread, in milliseconds" in written
    assert "recall of the exact top 200 keys" in written


def test_equal_measurements_give_equal_plot_files(
    tmp_path: Path, measured: tuple[dict[str, Point], dict[str, list[Point]]]
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_index_plots(tmp_path / name, *measured, top_b=200, recall_target=0.98)
    assert (tmp_path / "first" / "labels.svg").read_bytes() == (tmp_path / "second" / "labels.svg").read_bytes()


def test_build_writes_its_plots_even_if_it_publishes_nothing(
    tiny_run: Path, quick_export: None, tmp_path: Path
) -> None:
    report = tmp_path / "new" / "report"
    flags = ["--report", str(report), "--latency-budget-ms", "1e-6"]
    assert recollect.main(["build", str(tiny_run), "--store", str(tmp_path / "store"), *flags]) == 1
    assert "Flat, 28 keys" in texts(report / "instances.svg")
    assert "Flat, 8 keys" in texts(report / "labels.svg")


def test_build_fails_at_once_if_the_report_folder_cannot_be_created(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recollect.index_builder.build.write_bundle_tables", pytest.fail)
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        flags = ["--report", str(tmp_path / name)]
        assert recollect.main(["build", str(tiny_run), "--store", str(tmp_path / "store"), *flags]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert str(tmp_path / name) in err
