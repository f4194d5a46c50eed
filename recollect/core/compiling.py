"""Compiles the loops of an answer with numba, or loads them from a cache, when they are first called.

The folder `compiled/` beside this file is the cache of the installation, if it exists, and may be read-only. Its loops
run on every x86-64 CPU with AVX2 (x86-64-v3), or on every arm64 CPU. Without this folder, or on another CPU, numba
compiles for this CPU. The cache is then the folder in the environment variable NUMBA_CACHE_DIR, the folder __pycache__
beside this file, or ~/.cache/numba: the first one that can be written. Without one, each process compiles the loops.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import llvmlite.binding
import numba
from numba.core import config, event
from numba.core.caching import InTreeCacheLocator

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Features of x86-64-v3 that numba's loops may use.
_X86_64_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
_FOLDER = Path(__file__).parent / "compiled"

_compile: Any = functools.partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
_lock = threading.RLock()  # of the loops that are not yet compiled
log = logging.getLogger(__name__)


class InstalledCache(InTreeCacheLocator):
    """The cache of the installation, which numba may not be able to write."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        self._cache_path = str(_FOLDER)

    def ensure_cache_path(self) -> None:
        """Accept the folder. The base class requires a folder that can be written."""

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> InstalledCache | None:
        return cls(function, file) if Path(file).parent == _FOLDER.parent else None


def _use_installed_cache() -> None:
    """Let numba compile for the CPUs of the cache of the installation, if this CPU is one of them.

    Processes that this process starts inherit the variables.
    """
    if not _FOLDER.is_dir():
        return
    cpu = {"x86_64": "x86-64-v3", "aarch64": "generic", "arm64": "generic"}.get(platform.machine())
    features = llvmlite.binding.get_host_cpu_features() if cpu == "x86-64-v3" else {}
    if cpu is None or (features and not all(features.get(name) for name in _X86_64_V3)):
        return
    others = "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,IPythonCacheLocator,ZipCacheLocator"
    os.environ["NUMBA_CACHE_LOCATOR_CLASSES"] = f"{__name__}.{InstalledCache.__name__},{others}"
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = cpu, ""
    config.reload_config()  # type: ignore[no-untyped-call]


class _Compilation(event.Listener):
    """Reports the first loop that numba compiles in this process."""

    reported = False

    def __init__(self, cached: bool) -> None:
        self.cached = cached

    def on_start(self, event: Any) -> None:
        if not _Compilation.reported:
            _Compilation.reported = True
            kept = "kept for later" if self.cached else "not kept: set NUMBA_CACHE_DIR to a folder that can be written"
            log.warning("compiling loops for this machine, which takes some seconds; they are %s", kept)

    def on_end(self, event: Any) -> None:
        """The end of a compilation is not reported."""


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Stop the collection of cyclic garbage: it takes a tenth of the time of the compiler, which allocates much."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Loop(Generic[_Arguments, _Result]):
    """A function that is compiled for arguments of given types, or loaded from the cache, when it is first called."""

    def __init__(self, function: Callable[_Arguments, _Result], types: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        self._types = types
        self._compiled: Any = None

    def __call__(self, *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        if self._compiled is None:
            self.compile()
        result: _Result = self._compiled(*arguments, **keywords)
        return result

    def compile(self) -> None:
        """Compile the function, or load it from the cache; a second call does nothing."""
        with _lock, _without_collections():
            if self._compiled is not None:
                return
            function, cached = self.__wrapped__, True  # type: ignore[attr-defined]
            try:
                compiled = _compile(cache=True)(function)
            except RuntimeError:  # numba: no locator available
                compiled, cached = _compile()(function), False
            with event.install_listener("numba:compile", _Compilation(cached)):
                try:
                    compiled.compile(self._types)
                except OSError:  # the cache cannot be written, for example because the disk is full
                    if not compiled.signatures:
                        raise
            compiled.disable_compile()
            self._compiled = compiled


def compiled(*types: Any) -> Callable[[Callable[_Arguments, _Result]], Loop[_Arguments, _Result]]:
    """Compile a function for arguments of these types when it is first called."""
    return lambda function: Loop(function, types)


def inlined(function: _Function) -> _Function:
    """Compile a function together with its callers."""
    compiled_with_callers: _Function = _compile(no_cpython_wrapper=True)(function)
    return compiled_with_callers


_use_installed_cache()
