"""The desired version as a replica reads it: the activation record of its own store.

No other source can change the version. Redis only announces that there is a new record.
"""

from __future__ import annotations

import threading

from recollect.service.errors import StoreError
from recollect.service.store.activation_record import ActivationRecord
from recollect.service.store.store import Store


class DesiredVersion:
    """Reads the activation record, and refuses a record that is older than the record read before; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._last: ActivationRecord | None = None

    def read(self) -> ActivationRecord | None:
        """The activation record. If the store has none, the record read last, or None.

        Raises:
            StoreError: If the record is damaged, or older than the record read before.
            OSError: If the store cannot be read.
        """
        with self._lock:  # also while the store is read, otherwise a slow thread would compare an outdated record
            record = self._store.activation()
            if record is not None:
                self._require_newer(record)
                self._last = record
            return self._last

    def require(self) -> ActivationRecord:
        """The activation record.

        Raises:
            StoreError: If there is no store or no version is current, or as in `read`.
        """
        record = self.read()
        if record is None:
            self._store.require_current()  # raises the error that names the next step
            raise StoreError(f"{self._store.name}: the current version changed while it was read; try again")
        return record

    def _require_newer(self, record: ActivationRecord) -> None:
        if (last := self._last) is None or record.generation > last.generation:
            return
        if record.generation < last.generation:
            raise StoreError(
                f"{self._store.name}: expected generation {last.generation} or a later one, found generation "
                f"{record.generation} ({record.version}); run `recollect activate`, or restart the replicas if the "
                "store was restored from a backup"
            )
        if record.generation > 0 and record.version != last.version:  # generation 0: CURRENT is written by hand
            raise StoreError(
                f"{self._store.name}: expected {last.version} for generation {last.generation}, found "
                f"{record.version}; run `recollect activate`"
            )
