"""The index types of Milvus that a build can request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import lists

# With fewer keys, `auto` means exact search.
_FEW_KEYS = 20_000
_LINKS, _CONSTRUCTION_EFFORT = 32, 200
# Milvus's default number of inverted lists of a segment. Milvus lowers it for few keys.
_LEAST_LISTS = 128
_SYNONYMS = {"flat": "FLAT", "ivf": "IVF_SQ8", "hnsw": "HNSW"}


@dataclass(frozen=True)
class IndexType:
    """An index type of Milvus.

    Attributes:
        name: Milvus's name.
        kind: The kind of its search effort.
        code_bytes: Bytes of the code of a key in the index, for each dimension.
        lists: Number of inverted lists; 0 if it has none.
        parameters: Milvus's parameters.
    """

    name: str
    kind: Literal["flat", "ivf", "hnsw", "diskann"]
    code_bytes: int
    lists: int = 0
    parameters: dict[str, int] = field(default_factory=dict)

    def bytes_per_key(self, dim: int) -> float:
        """About the memory or disk that a key takes in the index, without its vector in the collection."""
        return dim * self.code_bytes + 8.0 * self.parameters.get("M", 0)


def index_type(kind: str, keys: int, links: int | None = None, construction_effort: int | None = None) -> IndexType:
    """The index type for a value of `--index`, with the given or the default values of a graph.

    Raises:
        BuildError: If Milvus has no such index type.
    """
    if kind == "auto":
        kind = "FLAT" if keys < _FEW_KEYS else "HNSW"
    graph = {"M": links or _LINKS, "efConstruction": construction_effort or _CONSTRUCTION_EFFORT}
    inverted = max(_LEAST_LISTS, lists(keys))
    types = [
        IndexType("FLAT", "flat", 4),
        IndexType("IVF_FLAT", "ivf", 4, inverted, {"nlist": inverted}),
        IndexType("IVF_SQ8", "ivf", 1, inverted, {"nlist": inverted}),
        IndexType("HNSW", "hnsw", 4, 0, graph),
        IndexType("DISKANN", "diskann", 4),
    ]
    known = {each.name: each for each in types}
    name = _SYNONYMS.get(kind, kind.upper())
    if name not in known:
        raise BuildError(
            f"--index {kind}: expected auto, {', '.join(known)} with --engine milvus; choose one, or build without "
            "--engine"
        )
    return known[name]
