"""The components of an open bundle: each component is one open file, for example an index or the tokenizer.

Two versions often contain equal files: a version with more instances has the tokenizer of the version before. A version
therefore shares components with the versions that are open already. It opens, and hashes, only its other files.
Three facts determine a component: the function that opens it, the SHA-256 and size of its file, and the arguments of
the function. Components are shared only if all three are equal.

A shared component belongs to the file from which it was opened. Linux keeps a mapped file until the last process unmaps
it, so a component can be used after its file was deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from recollect.core.bundle.integrity import check_contents, check_sizes
from recollect.core.bundle.manifest import FileInfo, Manifest

# Rest between two components that are closed.
_CLOSE_REST_SECONDS = 0.002

Component = TypeVar("Component")
Arguments = TypeVarTuple("Arguments")

# The function that opens a component, its file, and the other arguments of the function.
_Key = tuple[Callable[..., Any], FileInfo, tuple[Any, ...]]


class Components:
    """Opens the files of one bundle. A file is opened only after its checksum was verified.

    Args:
        pause: Called after each step, so that a caller can slow the work down; None hashes several files in parallel.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        share_with: Iterable[Components] = (),
        pause: Callable[[], None] | None = None,
    ) -> None:
        self._folder, self._manifest, self._pause = folder, manifest, pause
        self._open: dict[_Key, Any] = {}
        self._shareable: dict[_Key, Any] = dict(pair for other in share_with for pair in other._open.items())
        check_sizes(folder, manifest)
        open_files = {file for _, file, _ in self._shareable}
        self._verified = {name for name, file in manifest.files.items() if file not in open_files}
        check_contents(folder, manifest, self._verified, pause)

    def open(self, function: Callable[[Path, *Arguments], Component], name: str, *arguments: *Arguments) -> Component:
        """Open a file with `function(path, *arguments)`, or share the equal component of another bundle."""
        key = (function, self._manifest.files[name], arguments)
        if key in self._shareable:
            component: Component = self._shareable[key]
        else:
            if name not in self._verified:  # another bundle has opened an equal file, but with other arguments
                check_contents(self._folder, self._manifest, {name}, self._pause)
                self._verified.add(name)
            component = function(self._folder / name, *arguments)
            if self._pause is not None:
                self._pause()
        self._open[key] = component
        return component

    def release_unused(self) -> None:
        """Forget the components of other bundles that this bundle does not use; call this after the last `open`."""
        self._shareable = {}
        self._pause = None

    def close(self) -> None:
        """Forget the components one after the other.

        A component that no other bundle shares is freed, which takes some milliseconds and holds Python's global lock.
        Other threads run in between.
        """
        while self._open:
            self._open.popitem()
            time.sleep(_CLOSE_REST_SECONDS)
