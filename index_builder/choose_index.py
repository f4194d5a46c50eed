"""The right index by itself: families compared on a sample of the keys, the best one built whole and measured again.

The sample's queries are keys that it leaves out. A whole index leaves none out: it is asked for the neighbours of
some of its keys, and each key counts as one of its own.
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

from index_builder.faiss_index import Keys, build_index, lists, some_units, write_index
from index_builder.recall import REACHABLE, exact_neighbours, milliseconds, reachable, recall
from service.bundle.manifest import IndexInfo, Point
from service.predictor.searcher import KeyIndex
from service.settings import Device

# Keys on which families are compared, and the queries that every measurement asks.
_SAMPLE_KEYS, QUERIES = 50_000, 256
# Below so many, exact search takes a fraction of a millisecond: there is nothing to compare.
_FEW_KEYS = 2_000
# Exact search loses nothing: it is taken where it answers this fast, however fast an approximation would.
_EXACT_MILLISECONDS = 2.0
# Recall that more effort must still win to be worth a try.
_GAIN = 0.0005
# Efforts tried between one that reaches the target and the next lower one.
_BISECTIONS = 2
# efSearch in multiples of b; shares of the lists; candidates compared again for each key asked for.
_GRAPH_EFFORTS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
_LIST_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1)
_REFINEMENTS = (2, 4, 8)
_TIMED_SECONDS = 2.0


@dataclass(frozen=True)
class Target:
    """What an index must reach.

    Attributes:
        recall: Share of the exact top b that it finds.
        top_b: Keys asked for.
        size_bytes: Most that the index may take.
        milliseconds: Most that a query may take, alone on one thread.
    """

    recall: float
    top_b: int
    size_bytes: float = np.inf
    milliseconds: float = np.inf


# Opens, for a factory string and a number of keys, what is told of each block.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


def candidates(keys: int, dim: int) -> list[str]:
    """Factory strings worth a comparison for so many keys: always the same families, at the size that suits them.

    Codes of four bits are compared 32 at a time, in registers; the nearest of them again, in eight bits a dimension.
    """
    families = ["Flat", "SQ8", "HNSW32,SQ8", f"IVF{lists(keys)},SQ8", f"IVF{lists(keys)},RaBitQ4"]
    if dim % 2 == 0:
        families.append(f"IVF{lists(keys) // 2},PQ{dim // 2}x4fs,Refine(SQ8)")
    return families


def build_best(
    keys: Keys,
    first_row: int,
    path: Path,
    kind: str,
    queries: Float[np.ndarray, "query dim"],
    target: Target,
    progress: Progress,
    device: Device = "cpu",
) -> tuple[IndexInfo, Point, list[Point]]:
    """Write the index that reaches the target, at the least effort that does.

    Args:
        keys: Unit vectors.
        first_row: The row of `keys[0]` in the memory, for messages.
        path: The file to write.
        kind: `auto`, or what `build_index` takes.
        queries: What the finished index is asked for.
        target: What it must reach.
        progress: Shows how an index grows.
        device: Where indexes are trained and filled; they are measured on the CPU.

    Returns:
        What the manifest says of the index, its point, and all points: those of the sample, then those of the whole.
        If no index reaches the target, the one that comes nearest.

    Raises:
        BuildError: If a key is no unit vector, or faiss rejects the kind.
    """
    measured: list[Point] = []
    families = [kind] if kind != "auto" else candidates(*keys.shape) if len(keys) >= _FEW_KEYS else ["Flat"]
    if len(families) > 1:
        measured += compare(keys, first_row, target, progress)
        families = ranked(measured, target, *keys.shape)
    wholes: dict[Point, IndexInfo] = {}  # by the point at which each does best
    tried = path.with_suffix(".tried")
    for family in families:
        info = _write(keys, family, first_row, tried, progress, device)
        trial = Trial(tried, info, keys, queries, target.top_b)
        points = list(curve(trial))
        points += between(trial, points, target)
        measured += points
        point = choose(points, target)
        wholes[point] = info.model_copy(update={"effort": point.effort, "refine": point.refine})
        if (best := choose(list(wholes), target)) == point:
            tried.replace(path)
        if reach([best], target):
            break
    tried.unlink(missing_ok=True)
    return wholes[best], best, measured


def compare(keys: Keys, first_row: int, target: Target, progress: Progress) -> list[Point]:
    """Measure every family on a sample of the keys, asked for keys that the sample leaves out.

    Where exact search is fast enough for all keys, nothing else is tried.

    Raises:
        BuildError: If one of them is no unit vector.
    """
    rows = np.linspace(0, len(keys) - 1, num=min(len(keys), _SAMPLE_KEYS + QUERIES), dtype=np.int64)
    held_out = spread(len(rows), QUERIES)
    units = some_units(keys, rows, first_row)
    queries, sample = units[held_out], np.delete(units, held_out, axis=0)
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.faiss"
        for factory in candidates(*sample.shape):
            info = _write(sample, factory, first_row, path, progress)
            points += curve(Trial(path, info, sample, queries, target.top_b))
            if any(map(_exact_and_fast, reach([_expected(point, *keys.shape) for point in points], target))):
                break
    return points


class Trial:
    """A written index, asked for what exact search has answered.

    Args:
        path: The index's file.
        info: What the manifest says of it.
        keys: All its keys.
        queries: What it is asked for.
        top_b: How many keys of each.
    """

    def __init__(
        self, path: Path, info: IndexInfo, keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int
    ) -> None:
        self.info, self._keys, self._queries = info, keys, queries
        self.top_b = min(top_b, info.keys)
        self._exact = exact_neighbours(keys, queries, self.top_b)
        self._bytes_per_key = path.stat().st_size / info.keys
        self._index = KeyIndex(path, info)
        self.lists, self._reachable = self._index.lists, reachable(self._index.index)

    def at(self, effort: int, refine: float) -> Point:
        """What it is like at one effort."""
        info = self.info.model_copy(update={"effort": effort, "refine": refine})
        search = functools.partial(self._index.at(info).search, top_b=self.top_b)
        return Point(
            factory=info.factory,
            keys=info.keys,
            effort=effort,
            refine=refine,
            recall=recall(search(self._queries).keys, self._keys, self._queries, self._exact),
            milliseconds=float(np.median(milliseconds(search, self._queries, _TIMED_SECONDS))),
            bytes_per_key=self._bytes_per_key,
            reachable=self._reachable,
        )


def curve(trial: Trial) -> Iterator[Point]:
    """Measure an index at rising effort, until there is nothing left to find."""
    before, refinements = -1.0, _refinements(trial.info)
    for effort in efforts(trial.info, trial.lists, trial.top_b):
        points = [trial.at(effort, refine) for refine in refinements]
        yield from points
        if points[-1].recall - before < _GAIN:
            return
        before = points[-1].recall


def between(trial: Trial, points: list[Point], target: Target) -> Iterator[Point]:
    """Measure a few efforts between the chosen one, if it reaches the target, and the next lower one, which does not.

    Those that reach it follow on each other ever lower, so that the last of them takes least.
    """
    high = choose(points, target)
    lower = [point for point in points if point.refine == high.refine and point.effort < high.effort]
    if not lower or not reach([high], target):
        return
    low = max(lower, key=lambda point: point.effort)
    for _ in range(_BISECTIONS):
        effort = round(math.sqrt(low.effort * high.effort))
        if not low.effort < effort < high.effort:
            return
        point = trial.at(effort, high.refine)
        yield point
        low, high = (low, point) if reach([point], target) else (point, high)


def _write(
    keys: Keys, factory: str, first_row: int, path: Path, progress: Progress, device: Device = "cpu"
) -> IndexInfo:
    """Build an index, and leave only the copy on disk: it is what is measured, and served."""
    with progress(factory, len(keys)) as told:
        index, info = build_index(keys, factory, first_row, told, device)
    write_index(index, path)
    return info


def efforts(info: IndexInfo, lists: int, top_b: int) -> list[int]:
    """Efforts at which to search one index, from quick to thorough.

    Args:
        info: The index.
        lists: Its inverted lists, if it has such.
        top_b: Keys asked for. Fewer lists than hold all candidates for them, or a smaller efSearch, are never looked
            at: a search makes up for less, so that such efforts would be one.
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


def ranked(points: list[Point], target: Target, keys: int, dim: int) -> list[str]:
    """Families by what they did on a sample, the one that should reach the target fastest on so many keys first.

    Those that missed it there are not tried, unless all did: then the one that came nearest is.
    """
    whole = [_expected(point, keys, dim) for point in points]
    reaching = sorted(reach(whole, target), key=_preference) or [choose(whole, target)]
    return list(dict.fromkeys(point.factory for point in reaching))


def choose(points: list[Point], target: Target) -> Point:
    """The fastest point that reaches the target; where none does, the one that finds most, of those within budget."""
    reaching = reach(points, target)
    if reaching:
        return min(reaching, key=_preference)
    return max(points, key=lambda point: (_within_budget(point, target), point.recall, -point.milliseconds))


def reach(points: list[Point], target: Target) -> list[Point]:
    """The points that reach the target, by indexes that leave no key behind."""
    return [
        point
        for point in points
        if point.recall >= target.recall and point.reachable >= REACHABLE and _within_budget(point, target)
    ]


def _within_budget(point: Point, target: Target) -> bool:
    size_bytes = point.bytes_per_key * point.keys
    return point.milliseconds <= target.milliseconds and size_bytes <= target.size_bytes


def _expected(point: Point, keys: int, dim: int) -> Point:
    """A point of a sample, on all keys, in its family's size for them.

    Looking at every code takes time in proportion. Graphs and lists take more too, but all alike: roughly the third
    root, at the same recall, so that it says nothing about which of them to take.
    """
    sizes = dict(zip(candidates(point.keys, dim), candidates(keys, dim), strict=True))
    factory = sizes.get(point.factory, point.factory)
    spent = point.milliseconds * (keys / point.keys if point.effort == 0 else 1)
    return point.model_copy(update={"factory": factory, "keys": keys, "milliseconds": spent})


def _preference(point: Point) -> float:
    return -1 if _exact_and_fast(point) else point.milliseconds


def _exact_and_fast(point: Point) -> bool:
    return point.factory == "Flat" and point.milliseconds <= _EXACT_MILLISECONDS


def spread(rows: int, wanted: int) -> Int[np.ndarray, " row"]:
    """Rows spread evenly over all."""
    return np.unique(np.linspace(0, rows - 1, num=min(rows, wanted), dtype=np.int64))
