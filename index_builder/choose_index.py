"""Choice of an index: compare families of indexes on a sample of the keys, then build and measure the best on all keys.

The queries of the sample are keys outside the sample. The queries of a full index are some of its keys, so each of
these queries finds its own key.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from index_builder.faiss_index import Keys, build_index, lists, select_units, write_index
from index_builder.recall import MIN_REACHABLE, exact_neighbours, reachable_share, recall, search_milliseconds
from service.bundle.manifest import IndexInfo, Point
from service.predictor.searcher import KeyIndex
from service.settings import Device

# Keys of the sample, and queries of every measurement.
_SAMPLE_KEYS, QUERIES = 50_000, 256
# With fewer keys, exact search takes a fraction of a millisecond, so other families are not tried.
_FEW_KEYS = 2_000
# Exact search has full recall. It is chosen if it is this fast, even if an approximate index is faster.
_EXACT_MILLISECONDS = 2.0
# Least gain of recall for which a higher effort is tried.
_GAIN = 0.0005
# Efforts tried between the chosen effort and the next lower one.
_BISECTIONS = 2
# efSearch as a multiple of b; nprobe as a share of the lists; candidates to refine for each key asked for.
_GRAPH_EFFORTS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
_LIST_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1)
_REFINEMENTS = (2, 4, 8)
_TIMED_SECONDS = 2.0


@dataclass(frozen=True)
class Target:
    """Requirements of an index.

    Attributes:
        recall: Least share of the exact top b keys that the index must find.
        top_b: Number of keys asked for.
        size_bytes: Largest size of the index.
        milliseconds: Longest search time of a query, alone on one thread.
    """

    recall: float
    top_b: int
    size_bytes: float = np.inf
    milliseconds: float = np.inf


# Opens a progress bar for a factory string and a number of keys. The bar is called with the size of each block.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


def candidate_factories(keys: int, dim: int) -> list[str]:
    """Factory strings of the families to compare, with the list counts that suit this number of keys.

    `PQx4fs` compares 32 four-bit codes at a time in registers; `Refine(SQ8)` then compares the nearest candidates with
    eight bits a dimension.
    """
    families = ["Flat", "SQ8", "HNSW32,SQ8", f"IVF{lists(keys)},SQ8", f"IVF{lists(keys)},RaBitQ4"]
    if dim % 2 == 0:
        families.append(f"IVF{lists(keys) // 2},PQ{dim // 2}x4fs,Refine(SQ8)")
    return families


def build_chosen_index(
    keys: Keys,
    first_row: int,
    path: Path,
    kind: str,
    queries: Float[np.ndarray, "query dim"],
    target: Target,
    progress: Progress,
    device: Device = "cpu",
) -> tuple[IndexInfo, Point, list[Point]]:
    """Choose, build and write the fastest index that meets the target; if none does, the one that comes nearest.

    Args:
        keys: Unit vectors.
        first_row: Row of `keys[0]` in the memory, for messages.
        path: The file to write.
        kind: `auto`, or a kind that `build_index` accepts.
        queries: Queries that measure the finished index.
        target: Requirements of the index.
        progress: Opens a progress bar for each index.
        device: Device that trains and fills indexes; the CPU measures them.

    Returns:
        The manifest entry of the index, its chosen point, and all measured points: first those of the sample, then
        those of full indexes.

    Raises:
        BuildError: If a key is not a unit vector, or faiss rejects the kind.
    """
    measured: list[Point] = []
    families = [kind] if kind != "auto" else candidate_factories(*keys.shape) if len(keys) >= _FEW_KEYS else ["Flat"]
    if len(families) > 1:
        measured += compare_families(keys, first_row, target, progress)
        families = rank_families(measured, target, *keys.shape)
    built: dict[Point, IndexInfo] = {}  # by the chosen point of each index
    trial_path = path.with_suffix(".trial")
    for family in families:
        info = _build_and_write(keys, family, first_row, trial_path, progress, device)
        trial = Trial(trial_path, info, keys, queries, target.top_b)
        points = list(measure_curve(trial))
        points += bisect_effort(trial, points, target)
        measured += points
        point = choose_point(points, target)
        built[point] = info.model_copy(update={"effort": point.effort, "refine": point.refine})
        if (best := choose_point(list(built), target)) == point:
            trial_path.replace(path)
        if meeting([best], target):
            break
    trial_path.unlink(missing_ok=True)
    return built[best], best, measured


def compare_families(keys: Keys, first_row: int, target: Target, progress: Progress) -> list[Point]:
    """Measure every family on a sample of the keys. The queries are keys outside the sample.

    If exact search is fast enough for all keys, no other family is tried.

    Raises:
        BuildError: If a key of the sample or of the queries is not a unit vector.
    """
    rows = np.linspace(0, len(keys) - 1, num=min(len(keys), _SAMPLE_KEYS + QUERIES), dtype=np.int64)
    held_out = evenly_spaced_rows(len(rows), QUERIES)
    units = select_units(keys, rows, first_row)
    queries, sample = units[held_out], np.delete(units, held_out, axis=0)
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.faiss"
        for factory in candidate_factories(*sample.shape):
            info = _build_and_write(sample, factory, first_row, path, progress)
            points += measure_curve(Trial(path, info, sample, queries, target.top_b))
            if any(map(_exact_and_fast, meeting([_expected(point, *keys.shape) for point in points], target))):
                break
    return points


class Trial:
    """A written index that is measured against exact search.

    Args:
        path: File of the index.
        info: Manifest entry of the index.
        keys: All its keys.
        queries: Queries to measure with.
        top_b: Number of keys that each query asks for.
    """

    def __init__(
        self, path: Path, info: IndexInfo, keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int
    ) -> None:
        self.info, self._keys, self._queries = info, keys, queries
        self.top_b = min(top_b, info.keys)
        self._exact = exact_neighbours(keys, queries, self.top_b)
        self._bytes_per_key = path.stat().st_size / info.keys
        self._index = KeyIndex(path, info)
        self.lists, self._reachable = self._index.lists, reachable_share(self._index.index)

    def measure(self, effort: int, refine: float) -> Point:
        """Measure recall and search time at one effort."""
        info = self.info.model_copy(update={"effort": effort, "refine": refine})
        search = functools.partial(self._index.at(info).search, top_b=self.top_b)
        return Point(
            factory=info.factory,
            keys=info.keys,
            effort=effort,
            refine=refine,
            recall=recall(search(self._queries).keys, self._keys, self._queries, self._exact),
            milliseconds=float(np.median(search_milliseconds(search, self._queries, _TIMED_SECONDS))),
            bytes_per_key=self._bytes_per_key,
            reachable=self._reachable,
        )


def measure_curve(trial: Trial) -> Iterator[Point]:
    """Measure an index at rising efforts, until a higher effort no longer improves the recall."""
    before, refinements = -1.0, _refinements(trial.info)
    for effort in efforts(trial.info, trial.lists, trial.top_b):
        points = [trial.measure(effort, refine) for refine in refinements]
        yield from points
        if points[-1].recall - before < _GAIN:
            return
        before = points[-1].recall


def bisect_effort(trial: Trial, points: list[Point], target: Target) -> Iterator[Point]:
    """Search for a lower effort that meets the target, between the chosen effort and the next lower measured one.

    If the chosen point does not meet the target, nothing is measured.
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
    keys: Keys, factory: str, first_row: int, path: Path, progress: Progress, device: Device = "cpu"
) -> IndexInfo:
    """Build an index and keep only its file, because the service opens the file, and so do the measurements."""
    with progress(factory, len(keys)) as advance:
        index, info = build_index(keys, factory, first_row, advance, device)
    write_index(index, path)
    return info


def efforts(info: IndexInfo, lists: int, top_b: int) -> list[int]:
    """List the efforts at which to measure an index, in ascending order.

    A search raises an effort that is too low to find `top_b` keys, so lower efforts are left out.

    Args:
        info: Manifest entry of the index.
        lists: Number of inverted lists; 0 if the index has none.
        top_b: Number of keys asked for.
    """
    wanted = min(top_b * max(_refinements(info)), info.keys)
    match info.kind:
        case "hnsw":
            steps = {int(min(wanted * factor, info.keys)) for factor in _GRAPH_EFFORTS}
        case "ivf":
            least = math.ceil(lists * wanted / info.keys)
            steps = {max(least, round(lists * share)) for share in _LIST_SHARES}
        case "flat":
            steps = {0}
    return sorted(steps)


def _refinements(info: IndexInfo) -> tuple[float, ...]:
    return _REFINEMENTS if info.refine > 1 else (1,)


def rank_families(points: list[Point], target: Target, keys: int, dim: int) -> list[str]:
    """Rank families by their measurements on the sample; the expected fastest on this number of keys comes first.

    Families that missed the target are left out. If all missed it, the one that came nearest is returned.
    """
    expected = [_expected(point, keys, dim) for point in points]
    ranked = sorted(meeting(expected, target), key=_preference) or [choose_point(expected, target)]
    return list(dict.fromkeys(point.factory for point in ranked))


def choose_point(points: list[Point], target: Target) -> Point:
    """Choose the fastest point that meets the target; if none does, the point with the best recall within budget."""
    if fitting := meeting(points, target):
        return min(fitting, key=_preference)
    return max(points, key=lambda point: (_within_budget(point, target), point.recall, -point.milliseconds))


def meeting(points: list[Point], target: Target) -> list[Point]:
    """The points that meet the target, of indexes in which a search can reach all keys."""
    return [
        point
        for point in points
        if point.recall >= target.recall and point.reachable >= MIN_REACHABLE and _within_budget(point, target)
    ]


def _within_budget(point: Point, target: Target) -> bool:
    size_bytes = point.bytes_per_key * point.keys
    return point.milliseconds <= target.milliseconds and size_bytes <= target.size_bytes


def _expected(point: Point, keys: int, dim: int) -> Point:
    """Predict a point on all keys from a point on the sample, with the family's list count for all keys.

    The time of an exhaustive search grows in proportion to the keys. The times of graphs and lists grow too, roughly
    with the third root at equal recall; the factor is the same for all of them, so it does not change their order.
    """
    factories = dict(zip(candidate_factories(point.keys, dim), candidate_factories(keys, dim), strict=True))
    factory = factories.get(point.factory, point.factory)
    spent = point.milliseconds * (keys / point.keys if point.effort == 0 else 1)
    return point.model_copy(update={"factory": factory, "keys": keys, "milliseconds": spent})


def _preference(point: Point) -> float:
    return -1 if _exact_and_fast(point) else point.milliseconds


def _exact_and_fast(point: Point) -> bool:
    return point.factory == "Flat" and point.milliseconds <= _EXACT_MILLISECONDS


def evenly_spaced_rows(rows: int, wanted: int) -> Int[np.ndarray, " row"]:
    """Choose rows at equal distances; all rows if there are fewer than wanted."""
    return np.unique(np.linspace(0, rows - 1, num=min(rows, wanted), dtype=np.int64))
