"""The right index by itself: families compared on a sample of the keys, the best one built whole and measured again.

The sample's queries are keys that it leaves out. A whole index leaves none out: it is asked for the neighbours of
some of its keys, and each key counts as one of its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from index_builder.faiss_index import Keys, build_index, lists, some_units, write_index
from index_builder.recall import exact_neighbours, milliseconds, recall
from service.manifest import IndexInfo, Point
from service.searcher import KeyIndex

# Keys on which families are compared, and the queries that every measurement asks.
_SAMPLE_KEYS, QUERIES = 50_000, 256
# Below so many, exact search takes a fraction of a millisecond: there is nothing to compare.
_FEW_KEYS = 2_000
# Exact search loses nothing: it is taken where it answers this fast, however fast an approximation would.
_EXACT_MILLISECONDS = 2.0
# Recall that more effort must still win to be worth a try.
_GAIN = 0.0005
# efSearch in multiples of b; shares of the lists; candidates compared again for each key asked for.
_GRAPH_EFFORTS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
_LIST_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1)
_REFINEMENTS = (1.5, 2, 4)
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


def candidates(keys: int) -> list[str]:
    """Factory strings worth a comparison for so many keys, from the most exact to the smallest."""
    if keys < _FEW_KEYS:
        return ["Flat"]
    return ["Flat", "SQ8", "HNSW32,SQ8", f"IVF{lists(keys)},SQ8", f"IVF{lists(keys)},RaBitQ4"]


def build_best(
    keys: Keys,
    first_row: int,
    path: Path,
    kind: str,
    queries: Float[np.ndarray, "query dim"],
    target: Target,
    progress: Progress,
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

    Returns:
        What the manifest says of the index, its point, and all points: those of the sample, then those of the whole.
        If no index reaches the target, the one that comes nearest.

    Raises:
        BuildError: If a key is no unit vector, or faiss rejects the kind.
    """
    measured: list[Point] = []
    families = candidates(len(keys)) if kind == "auto" else [kind]
    if len(families) > 1:
        measured += compare(keys, first_row, target, progress)
        families = ranked(measured, target, len(keys))
    wholes: dict[Point, IndexInfo] = {}  # by the point at which each does best
    tried = path.with_suffix(".tried")
    for family in families:
        info = _write(keys, family, first_row, tried, progress)
        points = list(curve(tried, info, keys, queries, target.top_b))
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
        for factory in candidates(len(sample)):
            info = _write(sample, factory, first_row, path, progress)
            points += curve(path, info, sample, queries, target.top_b)
            if any(map(_exact_and_fast, reach([_expected(point, len(keys)) for point in points], target))):
                break
    return points


def curve(
    path: Path, info: IndexInfo, keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int
) -> Iterator[Point]:
    """Measure a written index at rising effort, until there is nothing left to find."""
    top_b, size = min(top_b, info.keys), path.stat().st_size
    exact, before = exact_neighbours(keys, queries, top_b), -1.0
    for tried in efforts(info, KeyIndex(path, info).lists, top_b):
        index = KeyIndex(path, tried)
        found = recall(index, keys, queries, exact)
        spent = float(np.median(milliseconds(index, queries, top_b, _TIMED_SECONDS)))
        yield Point(
            factory=info.factory,
            keys=info.keys,
            effort=tried.effort,
            refine=tried.refine,
            recall=found,
            milliseconds=spent,
            bytes_per_key=size / info.keys,
        )
        if tried.refine == max(_refinements(info)):
            if found - before < _GAIN:
                return
            before = found


def _write(keys: Keys, factory: str, first_row: int, path: Path, progress: Progress) -> IndexInfo:
    """Build an index, and leave only the copy on disk: it is what is measured, and served."""
    with progress(factory, len(keys)) as told:
        index, info = build_index(keys, factory, first_row, told)
    write_index(index, path)
    return info


def efforts(info: IndexInfo, lists: int, top_b: int) -> Iterator[IndexInfo]:
    """Ways to search one index, from quick to thorough.

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
    for effort in sorted(steps):
        for refine in _refinements(info):
            yield info.model_copy(update={"effort": effort, "refine": refine})


def _refinements(info: IndexInfo) -> tuple[float, ...]:
    return _REFINEMENTS if info.refine > 1 else (1,)


def ranked(points: list[Point], target: Target, keys: int) -> list[str]:
    """Families by what they did on a sample, the one that should reach the target fastest on so many keys first.

    Those that missed it there are not tried, unless all did: then the one that came nearest is.
    """
    whole = [_expected(point, keys) for point in points]
    reaching = sorted(reach(whole, target), key=_preference) or [choose(whole, target)]
    return list(dict.fromkeys(point.factory for point in reaching))


def choose(points: list[Point], target: Target) -> Point:
    """The fastest point that reaches the target; where none does, the one that finds most, of those within budget."""
    reaching = reach(points, target)
    if reaching:
        return min(reaching, key=_preference)
    return max(points, key=lambda point: (_within_budget(point, target), point.recall, -point.milliseconds))


def reach(points: list[Point], target: Target) -> list[Point]:
    """The points that reach the target."""
    return [point for point in points if point.recall >= target.recall and _within_budget(point, target)]


def _within_budget(point: Point, target: Target) -> bool:
    size_bytes = point.bytes_per_key * point.keys
    return point.milliseconds <= target.milliseconds and size_bytes <= target.size_bytes


def _expected(point: Point, keys: int) -> Point:
    """A point of a sample, on all keys: looking at every code takes time in proportion, a walk hardly more.

    Its family has as many lists as are right for all keys.
    """
    factory = point.factory.replace(f"IVF{lists(point.keys)},", f"IVF{lists(keys)},")
    spent = point.milliseconds * (keys / point.keys if point.effort == 0 else 1)
    return point.model_copy(update={"factory": factory, "keys": keys, "milliseconds": spent})


def _preference(point: Point) -> float:
    return -1 if _exact_and_fast(point) else point.milliseconds


def _exact_and_fast(point: Point) -> bool:
    return point.factory == "Flat" and point.milliseconds <= _EXACT_MILLISECONDS


def spread(rows: int, wanted: int) -> Int[np.ndarray, " row"]:
    """Rows spread evenly over all."""
    return np.unique(np.linspace(0, rows - 1, num=min(rows, wanted), dtype=np.int64))
