"""Views of a classifier's keys alone, in the measurement and in the report."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import recollect
from recollect.index_builder.compare.quality import measure
from recollect.index_builder.compare.queries import Queries
from recollect.index_builder.compare.tables import plain_table
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.metrics import report
from tests.conftest import write_topics
from tests.index_builder.comparisons import results_of
from tests.index_builder.conftest import write_tiny_encoder


@pytest.mark.parametrize(("method", "views"), [("unidec", ["dual encoder", "classifier"]), ("rae", [])])
def test_labels_are_ranked_by_each_view_of_their_keys(method: str, views: list[str], tmp_path: Path) -> None:
    data, encoder = write_topics(tmp_path / "topics"), write_tiny_encoder(tmp_path / "tiny", "bert")
    run = recollect.train(data, out=tmp_path / "run", encoder=encoder, method=method, max_steps=3, tune="no")
    dataset = open_dataset(data)
    queries = Queries(dataset.labels, dataset.read_split("test"), (0.55, 1.5), frozen=True)
    quality, memory = measure(run, queries, "cpu"), open_memory(run / "memory")
    assert list(quality.views) == views
    vectors, keys = queries.vectors(run, "cpu"), memory.label_keys(0.0).filled()
    counts = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    half = keys.shape[1] // 2
    for name, part in zip(views, (slice(0, half), slice(half, None)), strict=False):
        ranked = np.argsort(-(vectors[:, part] @ keys[:, part].T), axis=1, kind="stable")
        assert quality.views[name] == report(ranked, queries.truth, counts, memory.plan.instances, (0.55, 1.5))


def test_report_has_a_column_for_each_view() -> None:
    both, one = results_of("unidec", [50, 52]), results_of("rae", [40])
    runs = [replace(run, quality=replace(run.quality, views={"classifier": {"nDCG@5": 30.0}})) for run in both.runs]
    table = plain_table([replace(both, runs=runs), one])
    column = table.headings.index("nDCG@5, classifier alone")
    assert [row[column].text for row in table.rows] == ["30.00 ± 0.00", "-"]
    assert not any("alone" in heading for heading in plain_table([one]).headings)
