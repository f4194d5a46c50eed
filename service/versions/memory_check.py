"""A version is opened only if enough memory is free for it.

During a swap, two versions are open at the same time. Without this check, a next version that is too large could make
the kernel kill the process that serves the current version.
"""

from __future__ import annotations

from collections.abc import Sequence

from recollect.service.bundle.manifest import Manifest
from recollect.service.errors import InsufficientMemoryError
from recollect.service.memory_use import free_bytes

# Private memory of an open bundle: multiples of the sizes of two files, and a constant. All other files are mapped into
# memory, and the kernel can drop mapped pages when memory is short.
_ENCODER_FACTOR, _TOKENIZER_FACTOR, _CONSTANT_BYTES = 3.0, 8.0, 64 << 20


def require_memory(manifest: Manifest, processes: int = 1, share_with: Sequence[Manifest] = ()) -> None:
    """Refuse to open a version for which too little memory is free.

    Args:
        manifest: The manifest of the version.
        processes: Processes that open the version at the same time.
        share_with: The manifests of the versions that are open and share their equal files.

    Raises:
        InsufficientMemoryError: If less is free than the processes need.
    """
    needed, free = processes * private_bytes(manifest, share_with), free_bytes()
    if free < needed:
        raise InsufficientMemoryError(
            f"version {manifest.version}: expected {needed / 1e6:,.0f} MB of free memory to open it, "
            f"found {free / 1e6:,.0f} MB; give the service more memory"
        )


def private_bytes(manifest: Manifest, share_with: Sequence[Manifest] = ()) -> int:
    """An upper estimate of the private memory that opening a bundle adds: memory that is not backed by files.

    An encoder or a tokenizer that an open bundle shares adds nothing.
    """
    alike = [each for each in share_with if each.encoder == manifest.encoder]

    def added(name: str) -> int:
        return 0 if any(each.files[name] == manifest.files[name] for each in alike) else manifest.files[name].size

    private = _ENCODER_FACTOR * added("encoder.onnx") + _TOKENIZER_FACTOR * added("tokenizer.json")
    return int(private) + _CONSTANT_BYTES
