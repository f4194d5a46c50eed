"""The choice of an index: measured families, chosen measurements, and requirements that no index meets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from recollect.core.bundle.manifest import IndexInfo, Point
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.index_builder import choose_index
from recollect.index_builder.choose_index import (
    IndexTrial,
    Target,
    TrialQueries,
    build_chosen_index,
    candidate_factories,
    choose_point,
    measure_curve,
    rank_families,
)
from recollect.index_builder.faiss_index import KeysToIndex, build_index, write_index
from recollect.index_builder.recall import exact_neighbours
from tests.index_builder.vectors import clustered_keys, near, random_keys, recall_of


@contextlib.contextmanager
def silent(factory: str, keys: int) -> Iterator[Callable[[int], object]]:
    """Ignore progress."""
    yield lambda rows: None


def point(factory: str, recall: float, milliseconds: float, **more: Any) -> Point:
    """A measurement on a thousand keys of 100 bytes each."""
    plain = {"keys": 1_000, "effort": 1, "refine": 1, "bytes_per_key": 100}
    return Point(**plain | {"factory": factory, "recall": recall, "milliseconds": milliseconds} | more)


def trial(keys: Any, kind: str, folder: Path, top_b: int) -> IndexTrial:
    """Build and write an index, and prepare a trial with queries close to the first keys."""
    index, info = build_index(KeysToIndex(keys), kind)
    write_index(index, folder / "keys.faiss")
    return IndexTrial.open(folder / "keys.faiss", info, keys, TrialQueries(near(keys, 50)), top_b)


def best(keys: Any, kind: str, folder: Path, target: Target) -> tuple[IndexInfo, Point, list[Point]]:
    queries = TrialQueries(near(keys[:], min(len(keys), 50)))
    return build_chosen_index(KeysToIndex(keys), folder / "keys.faiss", kind, queries, target, silent)


@pytest.fixture(autouse=True)
def _times_follow_effort(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace measured search times by times that depend only on the index and its search effort.

    A time grows with the effort, and slightly with the number of candidates to refine. An exhaustive search takes
    0.1 ms for each thousand keys. One thread builds all indexes, because a graph depends on the order in which threads
    add keys.
    """
    measure = IndexTrial.measure

    def timed(trial: IndexTrial, effort: int, refine: float) -> Point:
        measured = measure(trial, effort, refine)
        milliseconds = effort / 100 + refine / 1_000 if effort else measured.keys / 10_000
        return measured.model_copy(update={"milliseconds": milliseconds})

    monkeypatch.setattr(choose_index, "search_milliseconds", lambda *_: np.ones(1))
    monkeypatch.setattr(IndexTrial, "measure", timed)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare families on a thousand keys with a hundred queries."""
    monkeypatch.setattr(choose_index, "_SAMPLE_KEYS", 1_000)
    monkeypatch.setattr(choose_index, "QUERIES", 100)
    monkeypatch.setattr(choose_index, "_FEW_KEYS", 500)


# The chosen measurement.


def test_fastest_measurement_with_enough_recall_is_chosen() -> None:
    points = [point("HNSW32,SQ8", 0.97, 0.1), point("HNSW32,SQ8", 0.981, 0.4), point("IVF64,SQ8", 0.99, 0.3)]
    assert choose_point(points, Target(0.98, 10)) == points[2]
    assert choose_point(points, Target(0.97, 10)) == points[0]


@pytest.mark.parametrize("limit", [0.2, 2])
def test_exact_search_is_chosen_only_if_it_is_fast(limit: float) -> None:
    quick, slow = point("Flat", 1, limit - 0.01), point("Flat", 1, limit + 0.01)
    target, graph = Target(0.98, 10, exact_milliseconds=limit), point("HNSW32,SQ8", 0.99, 0.1)
    assert choose_point([graph, quick], target) == quick
    assert choose_point([graph, slow], target) == graph


@pytest.mark.parametrize("choosing", [choose_point, lambda points, target: rank_families(points, target, 1_000, 32)])
def test_measurements_over_the_memory_or_time_budget_are_not_chosen(choosing: Callable[..., Any]) -> None:
    exact, graph = point("Flat", 1, 0.5, bytes_per_key=1_536), point("HNSW32,SQ8", 0.99, 0.1, bytes_per_key=656)
    lists = point("IVF100,RaBitQ4", 0.98, 0.9, bytes_per_key=210)
    family = {each: each if choosing is choose_point else [each.factory] for each in (exact, graph, lists)}

    def chosen(**budget: float) -> Any:
        return choosing([exact, graph, lists], Target(0.98, 10, **budget))

    assert chosen(size_bytes=300_000) == family[lists]
    assert chosen(milliseconds=0.2) == family[graph]
    assert chosen(size_bytes=700_000, milliseconds=0.2) == family[graph]
    assert chosen(size_bytes=700_000) == (graph if choosing is choose_point else [graph.factory, lists.factory])


def test_best_recall_within_the_budgets_is_chosen_when_nothing_reaches_the_required_recall() -> None:
    exact, graph = point("Flat", 1, 5, bytes_per_key=1_536), point("HNSW32,SQ8", 0.97, 0.1, bytes_per_key=656)
    few, more = (
        point("IVF100,RaBitQ4", 0.8, 0.2, bytes_per_key=210),
        point("IVF100,RaBitQ4", 0.9, 0.4, bytes_per_key=210),
    )
    points = [exact, graph, few, more]
    assert choose_point(points, Target(0.98, 10, size_bytes=300_000)) == more
    assert choose_point(points, Target(0.98, 10, size_bytes=300_000, milliseconds=0.3)) == few
    assert choose_point(points, Target(0.98, 10, milliseconds=1)) == graph
    assert choose_point(points, Target(0.98, 10, size_bytes=1)) == exact
    assert rank_families(points, Target(0.98, 10, size_bytes=300_000), 1_000, 32) == ["IVF100,RaBitQ4"]


# The measured families and efforts.


@pytest.mark.parametrize("dim", [1, 7, 32])
def test_faiss_can_create_every_candidate_index(dim: int) -> None:
    for factory in candidate_factories(3_000, dim):
        assert faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT).d == dim


@pytest.mark.parametrize("top_b", [20, 200])
@pytest.mark.parametrize("kind", ["ivf", "hnsw", "IVF76,PQ16x4fs,Refine(SQ8)", "IVF40,RaBitQ4", "SQ8"])
def test_measurement_raises_the_effort_until_the_recall_no_longer_grows(tmp_path: Path, kind: str, top_b: int) -> None:
    keys = clustered_keys(3_000)
    queries, path, written = near(keys, 50), tmp_path / "keys.faiss", trial(keys, kind, tmp_path, top_b)
    info, points = written.info, list(measure_curve(written))
    exact = exact_neighbours(keys, queries, top_b)
    for each in points:
        served = KeyIndex(OpenIndex(path), info.model_copy(update={"effort": each.effort, "refine": each.refine}))
        assert each.recall == recall_of(served, keys, queries, exact)
        assert (each.factory, each.keys) == (info.factory, 3_000)
        assert each.bytes_per_key == path.stat().st_size / 3_000
    thorough = info.model_copy(update={"effort": 3_000, "refine": max(each.refine for each in points)})
    assert (
        max(each.recall for each in points)
        >= recall_of(KeyIndex(OpenIndex(path), thorough), keys, queries, exact) - 0.002
    )


# The built indexes.


def test_index_auto_compares_families_on_a_sample_and_builds_the_best_on_all_keys(
    tmp_path: Path, small_sample: None
) -> None:
    keys, target = clustered_keys(3_000), Target(0.95, 20, exact_milliseconds=0)
    info, chosen, points = best(keys, "auto", tmp_path, target)
    assert {each.factory for each in points if each.keys == 1_000} == set(candidate_factories(1_000, 32))
    whole = [each for each in points if each.keys == 3_000]
    assert chosen == choose_point(whole, target)
    assert chosen.recall >= 0.95
    assert info.factory in candidate_factories(3_000, 32)
    assert (info.factory, info.effort, info.refine, info.keys) == (
        *(chosen.factory, chosen.effort, chosen.refine),
        3_000,
    )
    served = KeyIndex(OpenIndex(tmp_path / "keys.faiss"), info)
    assert recall_of(served, keys, near(keys, 50), exact_neighbours(keys, near(keys, 50), 20)) == chosen.recall
    assert [path.name for path in tmp_path.iterdir()] == ["keys.faiss"]


def test_index_auto_stays_within_the_memory_budget(tmp_path: Path, small_sample: None) -> None:
    keys = clustered_keys(3_000)
    info, chosen, _ = best(keys, "auto", tmp_path, Target(0.9, 20, size_bytes=64 * 3_000))  # half the size of float32
    assert info.factory != "Flat"
    assert (tmp_path / "keys.faiss").stat().st_size <= 64 * 3_000
    assert chosen.recall >= 0.9


def test_index_auto_does_not_choose_a_graph_with_unreachable_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_index, "compare_families", lambda *_: [])
    monkeypatch.setattr(choose_index, "rank_families", lambda *_: ["HNSW32,SQ8", "SQ8"])
    keys = clustered_keys(3_000)
    info, _, _ = best(keys, "auto", tmp_path, Target(0.9, 20))
    assert info.factory == "HNSW32,SQ8"
    keys[::10] = keys[0]  # more copies of one key than a key has links, as repeated queries in search logs
    info, chosen, points = best(keys, "auto", tmp_path, Target(0.9, 20))
    assert {each.factory: each.reachable for each in points}["HNSW32,SQ8"] < 0.999
    assert (info.factory, chosen.reachable) == ("SQ8", 1)


def test_requested_factory_string_is_built_and_gets_the_fastest_effort_with_enough_recall(tmp_path: Path) -> None:
    info, chosen, points = best(clustered_keys(3_000), "IVF64,SQ8", tmp_path, Target(0.9, 20))
    assert {each.factory for each in points} == {info.factory} == {"IVF64,SQ8"}
    assert chosen.recall >= 0.9
    assert all(each.recall < 0.9 for each in points if each.milliseconds < chosen.milliseconds)


@pytest.mark.parametrize("kind", ["auto", "ivf", "hnsw", "RR16,HNSW8"])
@pytest.mark.parametrize("rows", [1, 8])
def test_all_keys_are_found_when_there_are_fewer_than_top_b(tmp_path: Path, kind: str, rows: int) -> None:
    info, chosen, _ = best(random_keys(rows), kind, tmp_path, Target(0.98, 200))
    assert (chosen.recall, info.keys) == (1, rows)
    assert info.effort <= rows


@pytest.mark.parametrize("kind", ["auto", "ivf", "IVF1,RaBitQ4"])
@pytest.mark.parametrize("rows", [30, 3_000])
def test_equal_keys_count_as_equally_good(tmp_path: Path, kind: str, rows: int) -> None:
    keys = np.repeat(random_keys(1), rows, axis=0)
    info, chosen, _ = build_chosen_index(
        KeysToIndex(keys), tmp_path / "keys.faiss", kind, TrialQueries(keys[:20]), Target(0.98, 200), silent
    )
    assert (chosen.recall, info.keys) == (1, rows)


@pytest.mark.parametrize("kind", ["HNSW8,SQ8", "RR32,HNSW8,Flat", "HNSW8,SQ4,Refine(SQ8)", "IVF64,Flat"])
def test_recall_is_that_of_queries_outside_of_the_index(tmp_path: Path, kind: str) -> None:
    all_keys = random_keys(3_500, 64)
    keys, outside, rows = all_keys[:3_000], all_keys[3_000:], np.arange(0, 3_000, 12)
    path, target = tmp_path / "keys.faiss", Target(0.9, 20, effort=20)
    info, chosen, _ = build_chosen_index(KeysToIndex(keys), path, kind, TrialQueries(keys[rows], rows), target, silent)
    index = KeyIndex(OpenIndex(path), info)
    truth = recall_of(index, keys, outside, exact_neighbours(keys, outside, 20))
    assert chosen.recall == pytest.approx(truth, abs=0.03)
    # All keys are in the order of their rows.
    assert info.keys == chosen.keys == index.keys == 3_000
    assert (index.search(keys, 1).keys[:, 0] == np.arange(3_000)).mean() > 0.95
