"""The order of a ranker without a bundle is the order in which a bundle with this ranker answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import recollect
from recollect.index_builder.run_quality import Queries, measure
from recollect.trainer.data.dataset import open_dataset
from tests.index_builder.ranking.conftest import RankedRun


def test_comparison_measures_the_ranker_as_the_evaluation_of_a_bundle_does(ranked: RankedRun, tmp_path: Path) -> None:
    folder = ranked.run.parent / "dataset"
    dataset = open_dataset(folder)
    run = shutil.copytree(ranked.run, tmp_path / "run")
    queries = Queries(dataset.read_split("test"), len(dataset.labels), (0.55, 1.5), frozen=True)
    quality = measure(run, queries, "cpu")
    rows = {row["order"]: row for row in recollect.evaluate(folder, store=ranked.store)["rows"]}
    assert quality.ranked is not None
    for metric in ("P@1", "P@5", "nDCG@5", "PSP@5"):
        assert quality.ranked[metric] == pytest.approx(rows["probability"][metric])
    assert quality.ranked["P@1"] != quality.tuned["P@1"]
    assert measure(run, queries, "cpu", with_ranker=False).ranked is None
    shutil.rmtree(run / "memory" / "ranker")
    assert measure(run, queries, "cpu").ranked is None
