"""`recollect build --memory-sequence`: the live entries that the dataset of a run contains already."""

from __future__ import annotations

from recollect.index_builder.errors import BuildError
from recollect.service.memory_log.retention import last_entry, removed_entries
from recollect.service.store.store import Store


def check_memory_sequence(store: Store, sequence: int) -> None:
    """Check that the log of a store has all entries after those that a bundle contains.

    Args:
        store: The store.
        sequence: Sequence number of the last entry that the bundle contains; 0 if it contains none.

    Raises:
        BuildError: If later entries were removed, or if the log has no such entry.
        MemoryLogError, StoreError, OSError: If the log cannot be read.
    """
    if sequence < (removed := removed_entries(store)):
        raise BuildError(
            f"--memory-sequence: expected at least {removed}, because `recollect prune --memory-log` has removed the "
            f"entries up to it from {store.name}, found {sequence}; train with a new `recollect export` of the store, "
            "and give the number that it prints"
        )
    if sequence and sequence > (last := last_entry(store)):
        raise BuildError(
            f"--memory-sequence: expected at most {last}, the last live entry of {store.name}, found {sequence}; give "
            "the number that `recollect export` prints"
        )
