"""The control groups that limit this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def control_groups(root: Path, controller: Literal["cpu", "memory"]) -> Iterator[tuple[Path, Literal[1, 2]]]:
    """The folders of all control groups that contain this process, and the version of their files.

    A container may not see its own group under this path, so some folders may not exist.

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        version: Literal[1, 2] = 1 if controllers else 2
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        if version == 1 and controller not in controllers.split(","):
            continue
        group = mount / path.lstrip("/")
        yield from ((folder, version) for folder in (group, *group.parents) if folder.is_relative_to(mount))


def read_lines(path: Path) -> list[str]:
    """The lines of a file of the kernel; an empty result if the file cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
