"""The segments of the log of a store: in its folder, or at its URL."""

from __future__ import annotations

from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.object_segments import ObjectSegments
from recollect.service.memory_log.segments import MEMORY, Segments
from recollect.service.storage.object_folder import ObjectFolder
from recollect.service.store.store import Store


def segments_of(store: Store) -> Segments:
    """The segments of the log of a store."""
    files = store.files
    return ObjectSegments(files, MEMORY) if isinstance(files, ObjectFolder) else FolderSegments(store.root / MEMORY)
