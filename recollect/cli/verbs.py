"""The verbs: their modules, settings, extras and the messages of wrong settings.

To add a verb, add a row to `VERBS`, and write a function with the name of the verb in the module of the row. The class
of its argument `settings` declares the flags, the environment variables, the defaults and the help together. The
function returns the line or the lines that the command prints, or its exit status. Its module imports libraries when
the function runs, so that `--help` is fast.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from recollect.core.errors import RecollectError

if TYPE_CHECKING:
    from pydantic import ValidationError


class UsageError(RecollectError):
    """A call is wrong: an unknown flag or keyword, a value out of range, or a package that is not installed."""


# The packages of faiss and ONNX Runtime, for each extra that installs them.
_ENGINES = {"cpu": ("faiss-cpu", "onnxruntime"), "gpu": ("faiss-gpu", "faiss-gpu-cuvs", "onnxruntime-gpu")}


class Verb(NamedTuple):
    """The module of the function of a verb, the extra that installs its packages, and its line in the overview."""

    module: str
    extra: str
    summary: str


VERBS = {
    "demo": Verb("recollect.cli.demo", "build,serve", "run all steps on the built-in sample, and serve the result"),
    "sample": Verb("recollect.cli.building", "train", "write the built-in sample dataset"),
    "presets": Verb("recollect.cli.building", "train", "list the settings of published experiments"),
    "train": Verb("recollect.index_builder.training", "train", "train an encoder on a dataset and encode its memory"),
    "tune": Verb("recollect.cli.building", "train", "choose lambda, tau, b and label keys on held-out instances"),
    "rank": Verb("recollect.cli.building", "build", "fit a ranker of labels on left-out instances"),
    "build": Verb("recollect.cli.building", "build", "build a bundle from a run and publish it in a store"),
    "push": Verb("recollect.cli.building", "build", "upload a run to the Hugging Face hub"),
    "evaluate": Verb("recollect.cli.building", "build", "measure a bundle on the test split of a dataset"),
    "compare": Verb("recollect.cli.building", "build", "train several methods with the same budget and write a table"),
    "predict": Verb("recollect.cli.answering", "serve", "answer a query or a file of queries, without a server"),
    "serve": Verb("recollect.cli.answering", "serve", "answer queries over HTTP"),
    "memory": Verb("recollect.cli.memory", "serve", "show the live memory of a store"),
    "extend": Verb("recollect.cli.memory", "serve", "add instances and labels to a live memory, and remove some"),
    "compact": Verb("recollect.cli.building", "build", "publish a bundle with the live memory of a store"),
    "versions": Verb("recollect.cli.versions", "serve", "list the bundles of a store"),
    "activate": Verb("recollect.cli.versions", "serve", "make a version current"),
    "rollback": Verb(
        "recollect.cli.versions", "serve", "remove the candidate, or make the previous version current again"
    ),
    "log": Verb("recollect.cli.versions", "serve", "list all activations and rollbacks of a store"),
    "verify": Verb("recollect.cli.versions", "serve", "check the files of a version and its golden queries"),
    "export": Verb("recollect.cli.memory", "serve", "write the memory of a version as a dataset"),
    "copy": Verb("recollect.cli.versions", "serve", "copy a version to another store"),
    "prune": Verb("recollect.cli.versions", "serve", "remove old versions from a store"),
}


def load_command(name: str) -> Any:
    return getattr(importlib.import_module(VERBS[name].module), name)


def settings_class(name: str) -> Any:
    """The class that declares the flags of a verb. It is the type of the argument `settings` of the verb's function."""
    return typing.get_type_hints(load_command(name))["settings"]


@contextlib.contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Raise an error that names the extra to install, if a package of another project is missing.

    The extras `cpu` and `gpu` install their packages into the same folders, so one overwrites the other.
    """
    installed = _installed_engines()
    if len(installed) == 2:
        both = " ".join(name for names in installed.values() for name in names)
        raise UsageError(
            f"found the packages {both}; recollect-xmc[cpu] and recollect-xmc[gpu] exclude each other: pip uninstall "
            f"{both}, then install one of the two extras"
        )
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "recollect":
            raise
        if error.name in ("faiss", "onnxruntime"):
            raise UsageError(
                f"needs {error.name}; pip install 'recollect-xmc[cpu]', or 'recollect-xmc[gpu]' for CUDA"
            ) from error
        raise UsageError(f"needs {error.name}; pip install 'recollect-xmc[{extra}]'") from error


def _installed_engines() -> dict[str, list[str]]:
    """The installed packages of each of the extras `cpu` and `gpu`."""
    installed: dict[str, list[str]] = {}
    for extra, names in _ENGINES.items():
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                importlib.metadata.distribution(name)
                installed.setdefault(extra, []).append(name)
    return installed


def describe(error: ValidationError, spell: typing.Callable[[str], str]) -> str:
    """Describe the first problem of a validation error in one line."""
    problem = error.errors()[0]
    name = spell(str(problem["loc"][0])) if problem["loc"] else "settings"
    if problem["type"] == "missing":
        return f"{name} " + (
            "is required" if len(problem["loc"]) == 1 else f"needs one more value than {problem['input']}"
        )
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}: expected {expected}; found {problem['input']!r}"
