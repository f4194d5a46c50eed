"""Choose an index by measurement.

First compare families of indexes, such as graphs and inverted lists, on a sample of the keys. Then build the best
family on all keys and measure it again.

The recall is that of queries which are not in the index. In a measurement on the sample, the queries are keys outside
the sample. In a measurement on all keys, the queries are some of these keys, and their own keys do not count. That is
enough for codes and inverted lists. In a graph, the own key of a query is linked to its nearest keys, so a search finds
them too easily. A graph is therefore measured without these keys, which are added afterwards.
docs/appendix-benchmarks.md has the measurements.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.manifest import IndexInfo, Point
from recollect.core.neighbours import Neighbours
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.core.settings import Device
from recollect.index_builder.faiss_index import (
    Keys,
    KeysToIndex,
    add_left_out,
    build_index,
    can_add_later,
    is_graph,
    lists,
    write_index,
)
from recollect.index_builder.left_out_votes import leave_out
from recollect.index_builder.recall import MIN_REACHABLE, exact_neighbours, reachable_share, recall, search_milliseconds

# Number of keys in the sample, and number of queries in every measurement.
_SAMPLE_KEYS, QUERIES = 50_000, 256
# A graph is measured without at most this share of its keys.
_LEFT_OUT_SHARE = 0.05
# With fewer keys, exact search takes a fraction of a millisecond, so other families are not tried.
_FEW_KEYS = 2_000
# The search effort is raised further only while each step raises the recall by at least this much.
_GAIN = 0.0005
# Number of search efforts (nprobe, efSearch) to try between the chosen effort and the next lower effort on the curve.
_BISECTIONS = 2
# Efforts to measure. For a graph: efSearch as a multiple of b. For inverted lists: nprobe as a share of the lists. For
# an index that refines its results: number of candidates for each requested key.
_GRAPH_EFFORTS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
_LIST_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1)
_REFINEMENTS = (2, 3, 4, 8)
_TIMED_SECONDS = 2.0


@dataclass(frozen=True)
class Target:
    """The requirements that an index must meet.

    Exact search within `exact_milliseconds` is chosen even if an approximate index is faster: its recall is always 1.
    """

    recall: float  # least share of the exact top b keys that the index must find
    top_b: int
    size_bytes: float = np.inf
    milliseconds: float = np.inf  # longest search time of one query on one thread
    exact_milliseconds: float = 2.0
    effort: int | None = None  # search effort; None: chosen by measurement


@dataclass(frozen=True)
class TrialQueries:
    """The queries of a measurement. `rows` has the rows of their own keys in the index, in rising order, if any."""

    vectors: Float[np.ndarray, "query dim"]
    rows: Int[np.ndarray, " query"] | None = None

    def few(self, count: int) -> TrialQueries:
        """`count` of the queries at equal distances."""
        some = evenly_spaced_rows(len(self.vectors), count)
        return TrialQueries(self.vectors[some], None if self.rows is None else self.rows[some])


# A function that opens a progress bar for an index (its factory string) and its number of keys. The builder calls the
# bar with the number of keys that it has added.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


def candidate_factories(keys: int, dim: int) -> list[str]:
    """The faiss factory strings of the families to compare, with numbers of inverted lists that suit the keys.

    `PQx4fs` scores 32 keys at a time in CPU registers, from codes of four bits. `Refine(SQ8)` then scores the best
    candidates again, with eight bits for each dimension. Up to about a million keys, a search of all these codes is
    faster than inverted lists. A graph is fast at a moderate recall, and `RaBitQ4` is small.
    docs/appendix-benchmarks.md has the measurements.
    """
    codes = f"PQ{dim if dim % 2 else dim // 2}x4fs"
    lists_of_codes = f"IVF{max(1, lists(keys) // 2)},{codes},Refine(SQ8)"
    return [
        *("Flat", f"{codes},Refine(SQ8)", f"{codes},Refine(SQ6)"),
        *(lists_of_codes, f"IVF{lists(keys)},RaBitQ4", "HNSW32,SQ8"),
    ]


def build_chosen_index(
    indexed: KeysToIndex,
    path: Path,
    kind: str,
    queries: TrialQueries,
    target: Target,
    progress: Progress,
    device: Device = "cpu",
    construction_effort: int | None = None,
) -> tuple[IndexInfo, Point, list[Point]]:
    """Choose, build and write the fastest index that meets the requirements.

    If no index meets them, choose the index with the best recall among the indexes within the budgets.

    Args:
        indexed: The keys. `auto` does not try a graph if they may have other lengths than 1.
        kind: `auto`, or a kind of index that `build_index` accepts.
        device: Device that trains and fills indexes. Measurements always run on the CPU.

    Returns:
        The manifest entry of the index, its chosen measurement, and all measurements: first the measurements on the
        sample, then the measurements on all keys.

    Raises:
        BuildError: If a key is not a unit vector, or faiss rejects the kind.
    """
    measured: list[Point] = []
    keys = indexed.keys
    families = [kind] if kind != "auto" else ["Flat"]
    if kind == "auto" and len(keys) >= _FEW_KEYS:
        measured += compare_families(indexed, target, progress)
        families = rank_families(measured, target, len(keys), keys.shape[1])
    built: dict[Point, IndexInfo] = {}  # manifest entry of each built index, by its chosen measurement
    trial_path = path.with_suffix(".trial")
    for family in families:
        asked, left_out = _left_out(keys, queries, family, device)
        rows = None if left_out is None else np.delete(np.arange(len(keys)), left_out)
        info = _build_and_write(indexed, family, trial_path, progress, device, construction_effort, rows)
        chosen, point, points = choose_effort(
            IndexTrial.open(trial_path, info, keys, asked, target.top_b, rows), target
        )
        measured += points
        if left_out is not None:
            complete = add_left_out(trial_path, indexed, left_out)
            point = point.model_copy(update={"keys": len(keys), "reachable": reachable_share(complete)})
            chosen = chosen.model_copy(update={"keys": len(keys)})
        built[point] = chosen
        if (best := choose_point(list(built), target)) == point:
            trial_path.replace(path)
        if meeting([best], target):
            break
    trial_path.unlink(missing_ok=True)
    return built[best], best, measured


def _left_out(
    keys: Keys, queries: TrialQueries, factory: str, device: Device
) -> tuple[TrialQueries, Int[np.ndarray, " row"] | None]:
    """The queries that measure an index, and the rows of the keys that are added after the measurement, or None.

    Keys can be added to a graph that a CPU has linked. Of few keys, fewer are left out, so that the graph hardly
    changes.
    """
    count = int(_LEFT_OUT_SHARE * len(keys))
    if queries.rows is None or device != "cpu" or not count or not can_add_later(factory, keys.shape[1]):
        return queries, None
    few = queries.few(count)
    return TrialQueries(few.vectors), few.rows


def compare_families(indexed: KeysToIndex, target: Target, progress: Progress) -> list[Point]:
    """Measure the recall and speed of every index family on a sample of the keys. The queries are other keys.

    If exact search over all keys would be fast enough, the other families are not measured.
    """
    count, dim = indexed.keys.shape
    rows = np.linspace(0, count - 1, num=min(count, _SAMPLE_KEYS + QUERIES), dtype=np.int64)
    held_out = evenly_spaced_rows(len(rows), QUERIES)
    some = indexed.select(rows)
    queries, sample = some[held_out], np.delete(some, held_out, axis=0)
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.faiss"
        for factory in candidate_factories(len(sample), dim):
            if not indexed.unit and is_graph(factory):
                continue
            info = _build_and_write(indexed._replace(keys=sample), factory, path, progress)
            points += measure_curve(IndexTrial.open(path, info, sample, TrialQueries(queries), target.top_b))
            expected = meeting([_expected(point, count, dim) for point in points], target)
            if any(_exact_and_fast(point, target) for point in expected):
                break
    return points


@runtime_checkable
class MeasuredKeys(Protocol):
    """Keys whose search effort can be changed: a faiss index, or keys in an engine."""

    info: IndexInfo
    keys: int
    lists: int

    def at(self, info: IndexInfo) -> MeasuredKeys: ...

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours: ...


class IndexTrial:
    """An index whose results are compared with exact search. It has the keys of `rows`, in rising order; None: all."""

    def __init__(
        self,
        index: MeasuredKeys,
        keys: Keys,
        queries: TrialQueries,
        top_b: int,
        bytes_per_key: float,
        reachable: float = 1.0,
        rows: Int[np.ndarray, " row"] | None = None,
    ) -> None:
        self.info, self.lists, self._index, self._keys, self._queries = index.info, index.lists, index, keys, queries
        self._rows = np.arange(len(keys)) if rows is None else rows
        self._own = queries.rows if index.keys > 1 else None
        self.top_b = min(top_b, index.keys if self._own is None else index.keys - 1)
        self._exact = self._without_own(exact_neighbours(keys, queries.vectors, self._searched, rows))
        self._bytes_per_key, self._reachable = bytes_per_key, reachable

    @classmethod
    def open(
        cls,
        path: Path,
        info: IndexInfo,
        keys: Keys,
        queries: TrialQueries,
        top_b: int,
        rows: Int[np.ndarray, " row"] | None = None,
    ) -> IndexTrial:
        index = KeyIndex(OpenIndex(path), info)
        return cls(index, keys, queries, top_b, path.stat().st_size / info.keys, reachable_share(index.index), rows)

    def measure(self, effort: int, refine: float) -> Point:
        """Measure recall and search time with one effort and one number of refined candidates for each key."""
        info = self.info.model_copy(update={"effort": effort, "refine": refine})
        index, vectors = self._index.at(info), self._queries.vectors
        neighbours = index.search(vectors, self._searched)
        rows = np.where(neighbours.keys < 0, -1, self._rows[neighbours.keys])
        neighbours = self._without_own(Neighbours(neighbours.similarities, rows))
        search = functools.partial(index.search, top_b=self.top_b)
        return Point(
            factory=info.factory,
            keys=info.keys,
            effort=effort,
            refine=refine,
            recall=recall(neighbours.keys, self._keys, vectors, self._exact),
            milliseconds=float(np.median(search_milliseconds(search, vectors, _TIMED_SECONDS))),
            bytes_per_key=self._bytes_per_key,
            reachable=self._reachable,
        )

    @property
    def _searched(self) -> int:
        """Number of keys to search for: one more if a query can find its own key."""
        return self.top_b if self._own is None else self.top_b + 1

    def _without_own(self, neighbours: Neighbours) -> Neighbours:
        return neighbours if self._own is None else leave_out(neighbours, self._own).first(self.top_b)


def choose_effort(trial: IndexTrial, target: Target) -> tuple[IndexInfo, Point, list[Point]]:
    """Choose the least search effort of an index that meets the requirements.

    Return the manifest entry of the index, its chosen measurement, and all measurements.
    """
    points = list(measure_curve(trial, target.effort))
    points += bisect_effort(trial, points, target)
    point = choose_point(points, target)
    return trial.info.model_copy(update={"effort": point.effort, "refine": point.refine}), point, points


def measure_curve(trial: IndexTrial, given: int | None = None) -> Iterator[Point]:
    """Measure an index with the given effort, or with higher and higher effort while that improves the recall."""
    before, refinements = -1.0, _refinements(trial.info)
    for effort in efforts(trial.info, trial.lists, trial.top_b) if given is None else [given]:
        points = [trial.measure(effort, refine) for refine in refinements]
        yield from points
        if points[-1].recall - before < _GAIN:
            return
        before = points[-1].recall


def bisect_effort(trial: IndexTrial, points: list[Point], target: Target) -> Iterator[Point]:
    """Search for a lower effort that still meets the requirements.

    The search is a bisection between the effort of the chosen measurement and the next lower measured effort. If the
    chosen measurement does not meet the requirements, nothing more is measured.
    """
    high = choose_point(points, target)
    lower = [point for point in points if point.refine == high.refine and point.effort < high.effort]
    if not lower or not meeting([high], target):
        return
    low = max(lower, key=lambda point: point.effort)
    for _ in range(_BISECTIONS):
        effort = round(math.sqrt(low.effort * high.effort))
        if not low.effort < effort < high.effort:
            return
        point = trial.measure(effort, high.refine)
        yield point
        low, high = (low, point) if meeting([point], target) else (point, high)


def _build_and_write(
    indexed: KeysToIndex,
    factory: str,
    path: Path,
    progress: Progress,
    device: Device = "cpu",
    construction_effort: int | None = None,
    rows: Int[np.ndarray, " row"] | None = None,
) -> IndexInfo:
    """Build an index, write it to a file, and free its memory. The measurements open the file, as the service does."""
    with progress(factory, len(indexed.keys)) as advance:
        index, info = build_index(indexed, factory, advance, device, construction_effort, rows)
    write_index(index, path)
    return info


def efforts(info: IndexInfo, lists: int, top_b: int) -> list[int]:
    """List the search efforts to measure for an index of so many inverted lists (0 for none), in ascending order.

    The list begins with the lowest effort that can find `top_b` keys, because the service raises any lower effort.
    """
    wanted = min(top_b * max(_refinements(info)), info.keys)
    match info.kind:
        case "hnsw" | "diskann":
            steps = {int(min(wanted * factor, info.keys)) for factor in _GRAPH_EFFORTS}
        case "ivf":
            minimum = math.ceil(lists * wanted / info.keys)
            steps = {max(minimum, round(lists * share)) for share in _LIST_SHARES}
        case "flat":
            steps = {0}
    return sorted(steps)


def _refinements(info: IndexInfo) -> tuple[float, ...]:
    return _REFINEMENTS if info.refine > 1 else (1,)


def rank_families(points: list[Point], target: Target, keys: int, dim: int) -> list[str]:
    """Rank families by the search time that their measurements on the sample predict for all keys, fastest first.

    Families that did not meet the requirements are left out. If no family met them, only the family with the best
    recall within the budgets is returned.
    """
    expected = [_expected(point, keys, dim) for point in points]
    ranked = sorted(meeting(expected, target), key=lambda point: _preference(point, target)) or [
        choose_point(expected, target)
    ]
    return list(dict.fromkeys(point.factory for point in ranked))


def choose_point(points: list[Point], target: Target) -> Point:
    """Choose the fastest measurement that meets the requirements.

    If none meets them, choose the measurement with the best recall among the measurements within the budgets.
    """
    if fitting := meeting(points, target):
        return min(fitting, key=lambda point: _preference(point, target))
    return max(points, key=lambda point: (_within_budget(point, target), point.recall, -point.milliseconds))


def meeting(points: list[Point], target: Target) -> list[Point]:
    """The measurements that meet the requirements, of indexes in which a search can reach nearly all keys."""
    return [
        point
        for point in points
        if point.recall >= target.recall and point.reachable >= MIN_REACHABLE and _within_budget(point, target)
    ]


def _within_budget(point: Point, target: Target) -> bool:
    size_bytes = point.bytes_per_key * point.keys
    return point.milliseconds <= target.milliseconds and size_bytes <= target.size_bytes


def _expected(point: Point, keys: int, dim: int) -> Point:
    """Predict a measurement on all keys from a measurement on the sample.

    The factory string gets the number of inverted lists that suits all keys. The time of an exhaustive search grows in
    proportion to the number of keys. At equal recall, the times of graphs and inverted lists grow roughly with the
    third root of that number. This growth is left out, because it is the same factor for all of them and does not
    change their order.
    """
    factories = dict(zip(candidate_factories(point.keys, dim), candidate_factories(keys, dim), strict=True))
    factory = factories.get(point.factory, point.factory)
    spent = point.milliseconds * (keys / point.keys if point.effort == 0 else 1)
    return point.model_copy(update={"factory": factory, "keys": keys, "milliseconds": spent})


def _preference(point: Point, target: Target) -> float:
    return -1 if _exact_and_fast(point, target) else point.milliseconds


def _exact_and_fast(point: Point, target: Target) -> bool:
    return point.factory == "Flat" and point.milliseconds <= target.exact_milliseconds


def evenly_spaced_rows(rows: int, wanted: int) -> Int[np.ndarray, " row"]:
    """Choose `wanted` of the row numbers at equal distances; all rows if there are fewer."""
    return np.unique(np.linspace(0, rows - 1, num=min(rows, wanted), dtype=np.int64))
