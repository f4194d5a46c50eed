"""Changes of the memory of an open predictor, in the log of its store if it follows one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from recollect.core.errors import ChangeError
from recollect.core.predictor import Predictor
from recollect.core.tables.snapshot import Snapshot
from recollect.edits.changes import Encode
from recollect.edits.commits import number
from recollect.edits.entries import Entry
from recollect.edits.writer import Request, Written

# Checks a change against a memory, and returns its entries.
Change = Callable[[Snapshot, Encode], list[Entry]]


def change(predictor: Predictor, make: Change, request: Request | None = None) -> Written:
    """Change the memory. When this function returns, later searches of this process use the change.

    `make` is called first without a lock, because it encodes texts, and then again, with the vectors of the first call,
    to check the change against the memory as it is then. Only a text that the first call did not have is encoded then.
    A change is refused only by a memory with all entries of the log: another process may have just added a label that
    the change names.

    If the predictor follows a log, the change is durable, and other processes that follow the log apply it too.

    Args:
        predictor: The predictor.
        make: Makes the entries of the change.
        request: The request that makes the change. The log carries it out once, even if it is sent several times.

    Returns:
        The sequence number of the last entry, and the answer of the request.

    Raises:
        ChangeError: If the change is wrong. Then nothing has changed.
        MemoryLogError, StoreError: If the log cannot be read or written; see `MemoryWriter.write`.
    """
    queries_known: dict[str, Float[np.ndarray, " dim"]] = {}
    labels_known: dict[str, Float[np.ndarray, " dim"]] = {}

    def encode(queries: Sequence[str], labels: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        new_queries = [text for text in dict.fromkeys(queries) if text not in queries_known]
        new_labels = [text for text in dict.fromkeys(labels) if text not in labels_known]
        if new_queries or new_labels:
            vectors = predictor.encode(new_queries, new_labels)
            queries_known.update(zip(new_queries, vectors, strict=False))
            labels_known.update(zip(new_labels, vectors[len(new_queries) :], strict=True))
        return np.array([*map(queries_known.get, queries), *map(labels_known.get, labels)])

    def entries() -> list[Entry]:
        return make(predictor.memory.snapshot, encode)

    log = predictor.log
    if log is None:
        entries()
        with predictor.changing:
            return Written(predictor.apply(number(entries(), predictor.memory.sequence + 1)).sequence, {})
    if request is not None and (written := log.answered(request)) is not None:
        return written
    try:
        entries()
    except ChangeError:
        log.catch_up()
        if request is not None and (written := log.answered(request)) is not None:
            return written
        entries()
    return log.write(lambda _: entries(), request)
