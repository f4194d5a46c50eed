"""Names: the words of each label's text, and where they occur in a query.

A label whose whole name is in a query is often true, above all if the name is among the first words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.arrays import map_array, map_offsets
from recollect.core.bundle.files import NAME_OFFSETS, NAME_WORDS
from recollect.core.bundle.values import Matrix, Rows
from recollect.core.system.files import save_array
from recollect.core.words.terms import Words, hash_word


@dataclass(frozen=True)
class Names:
    """The names of all labels.

    Attributes:
        bundle_names: The words of the name of each label of a bundle, each as a hash.
        live: The words of live names, which are numbered after those.
        row_of: The number of the name of each label; None if it is the label.
    """

    bundle_names: Matrix
    live: Matrix = Matrix.empty(np.uint64)
    row_of: Int[np.ndarray, " label"] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        return cls(Matrix(*Words.of(texts, hash_word)))

    @classmethod
    def open_with(cls, open_file: Callable[..., Any], labels: int) -> Names:
        """Open the files of a bundle, each with `open_file`, as `Components.open` opens files."""
        hashes = open_file(map_array, NAME_WORDS, "uint64")
        return cls(Matrix(open_file(map_offsets, NAME_OFFSETS, labels, len(hashes)), hashes))

    def write(self, folder: Path) -> None:
        save_array(folder / NAME_WORDS, self.bundle_names.indices)
        save_array(folder / NAME_OFFSETS, self.bundle_names.indptr)

    @property
    def arrays(self) -> tuple[Rows, Int[np.ndarray, " label"]]:
        """The arguments of a loop that reads names: two matrices, and the number of the name of each label."""
        row_of = np.empty(0, dtype=np.int32) if self.row_of is None else self.row_of
        first, live = (each.indices.view(np.int64) for each in (self.bundle_names, self.live))
        return (self.bundle_names.indptr, first, self.live.indptr, live), row_of
