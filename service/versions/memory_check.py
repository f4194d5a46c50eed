"""Memory to spare: two versions are open at once while they swap, and the second must not cost the first its life."""

from __future__ import annotations

from pathlib import Path

from service.bundle.manifest import Manifest
from service.errors import HeadroomError

# What an opened bundle holds for itself; the rest of it is mapped, and the system takes that back when it must.
_OF_ENCODER, _OF_TOKENIZER, _BESIDE_BYTES = 3.0, 8.0, 64 << 20

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def require_headroom(manifest: Manifest, processes: int = 1) -> None:
    """Refuse to open a version that might not find the memory it needs.

    Args:
        manifest: The version's.
        processes: That open it at the same time.

    Raises:
        HeadroomError: If less is free than it holds for itself.
    """
    needed, free = processes * private_bytes(manifest), free_bytes()
    if free < needed:
        raise HeadroomError(
            f"version {manifest.version}: expected {needed / 1e6:,.0f} MB of free memory to open it, "
            f"found {free / 1e6:,.0f} MB; give the service more"
        )


def private_bytes(manifest: Manifest) -> int:
    """What an opened bundle takes of memory that no file backs, rather too much than too little."""
    encoder, tokenizer = manifest.files["encoder.onnx"].size, manifest.files["tokenizer.json"].size
    return int(_OF_ENCODER * encoder + _OF_TOKENIZER * tokenizer) + _BESIDE_BYTES


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """What this process may still take: of the machine, and of its control group."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    of_machine = int(lines["MemAvailable"].split()[0]) << 10
    of_group = _free_in_group(cgroup)
    return of_machine if of_group is None else min(of_machine, of_group)


def _free_in_group(cgroup: Path) -> int | None:
    """What the control group still admits, its file pages counted as free; None if it sets no limit."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return None if limit == "max" else int(limit) - used + int(stat["file"])
    except (OSError, ValueError, KeyError):
        return None
