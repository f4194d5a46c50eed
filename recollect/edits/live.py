"""An open bundle whose memory follows the log of its store, and can be changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from recollect.core.bundle.bundle import Bundle
from recollect.core.errors import ChangeError
from recollect.core.memory import Memory
from recollect.core.predictor import Predictor
from recollect.core.settings import ConnectionSettings, Device
from recollect.core.tables.entries import Entry
from recollect.core.tables.snapshot import Snapshot
from recollect.edits.changes import Encode
from recollect.edits.commits import number
from recollect.edits.log import MemoryLog
from recollect.edits.writer import MemoryWriter, Request, Written

# Checks a change against a memory, and returns its entries.
Change = Callable[[Snapshot, Encode], list[Entry]]


class LivePredictor(Predictor):
    """A predictor with live entries; thread-safe.

    Attributes:
        log: Follows the log of the store, and writes to it; None before `follow`.
    """

    def __init__(
        self, bundle: Bundle, threads: int, device: Device = "cpu", connections: ConnectionSettings | None = None
    ) -> None:
        super().__init__(bundle, threads, device, connections)
        self.log: MemoryWriter[Memory] | None = None

    def close(self) -> None:
        self.log = None
        super().close()

    def follow(self, log: MemoryLog) -> None:
        """Apply all entries of a log. Later calls of `catch_up` and of `change` apply further ones.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read.
        """
        self.log = MemoryWriter(log, self.memory, lambda _, entries, commit: self.apply(entries, commit.encode()))
        self.catch_up()

    def catch_up(self) -> None:
        """Apply the entries that other processes and other open versions have appended to the log, if there is one.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read.
        """
        if self.log is not None:
            self.log.catch_up()

    def change(self, make: Change, request: Request | None = None) -> Written:
        """Change the memory. When this method returns, later searches of this process use the change.

        `make` is called first without a lock, because it encodes texts, and then again, with the vectors of the first
        call, to check the change against the memory as it is then. Only a text that the first call did not have is
        encoded then. A change is refused only by a memory with all entries of the log: another process may have just
        added a label that the change names.

        If the predictor follows a log, the change is durable, and other processes that follow the log apply it too.

        Args:
            make: Makes the entries of the change.
            request: The request that makes the change. The log carries it out once, even if it is sent several times.

        Returns:
            The sequence number of the last entry, and the answer of the request.

        Raises:
            ChangeError: If the change is wrong. Then nothing has changed.
            MemoryLogError, StoreError: If the log cannot be read or written; see `MemoryWriter.write`.
        """
        encode = _remembering(self.encode)

        def entries() -> list[Entry]:
            return make(self.memory.snapshot, encode)

        log = self.log
        if log is None:
            entries()
            with self._write:
                return Written(self.apply(number(entries(), self.memory.sequence + 1)).sequence, {})
        if written := log.answered(request):
            return written
        try:
            entries()
        except ChangeError:
            log.catch_up()
            if written := log.answered(request):
                return written
            entries()
        return log.write(lambda _: entries(), request)


def _remembering(encode: Encode) -> Encode:
    """An encoder that encodes each text once."""
    known: tuple[dict[str, Float[np.ndarray, " dim"]], dict[str, Float[np.ndarray, " dim"]]] = ({}, {})

    def remembered(queries: Sequence[str], labels: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        new = [
            [text for text in dict.fromkeys(texts) if text not in vectors]
            for texts, vectors in zip((queries, labels), known, strict=True)
        ]
        if any(new):
            vectors = encode(*new)
            known[0].update(zip(new[0], vectors, strict=False))
            known[1].update(zip(new[1], vectors[len(new[0]) :], strict=True))
        return np.array([*map(known[0].get, queries), *map(known[1].get, labels)])

    return remembered
