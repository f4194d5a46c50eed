"""The door: `recollect VERB ...` loads the verb's floor, reads its settings, runs it, and says plainly what went wrong.

A verb is a function with one argument, `settings`, whose class declares the verb's flags. Nothing heavy is imported
before a verb is chosen. Exit status: 0 done, 1 failed, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple


class Verb(NamedTuple):
    module: str
    extra: str
    summary: str


VERBS = {
    "demo": Verb("index_builder.cli", "build,serve", "sample, memory, bundle, evaluation and service, on this machine"),
    "sample": Verb("trainer.cli", "train", "write the built-in sample dataset"),
    "train": Verb("trainer.train_cli", "train", "train an encoder on a dataset, and remember the dataset with it"),
    "tune": Verb("trainer.cli", "train", "choose a run's lambda, tau, b and label keys on held-out instances"),
    "build": Verb("index_builder.cli", "build", "turn a run into a bundle and publish it in a store"),
    "evaluate": Verb("index_builder.cli", "build", "measure a bundle on a dataset's test split"),
    "compare": Verb("index_builder.cli", "build", "train several methods alike, and put them on one table"),
    "predict": Verb("service.cli", "serve", "answer one query, without a server"),
    "serve": Verb("service.cli", "serve", "answer queries over HTTP"),
    "versions": Verb("service.cli", "serve", "list a store's bundles"),
    "activate": Verb("service.cli", "serve", "make a version current"),
    "rollback": Verb("service.cli", "serve", "return to the version that was current before"),
    "verify": Verb("service.cli", "serve", "check a version's files, and its answers to its golden queries"),
}

USAGE = "usage: recollect VERB [--help] ..."


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        status = _choose(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has left: `recollect versions | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to write goes nowhere
        return 1
    return status


def _choose(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _write(sys.stdout if arguments else sys.stderr, _overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        import importlib.metadata

        _write(sys.stdout, f"recollect {importlib.metadata.version('recollect')}")
        return 0
    name = arguments[0]
    if name not in VERBS:
        _write(sys.stderr, f"recollect: expected a verb, found {name!r}; one of: {', '.join(VERBS)}")
        return 2
    return _run(name, arguments[1:])


def _run(name: str, arguments: Sequence[str]) -> int:
    verb = VERBS[name]
    try:
        command = getattr(importlib.import_module(verb.module), name)
        settings = _read_settings(command, name, arguments)
        return command(settings) or 0
    except KeyboardInterrupt:
        _write(sys.stderr, f"recollect {name}: interrupted")
        return 130
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("service", "trainer", "index_builder"):
            raise
        _write(sys.stderr, f"recollect {name}: needs {error.name}; pip install 'recollect[{verb.extra}]'")
        return 2
    except OSError as error:
        _write(sys.stderr, f"recollect {name}: {error.filename or 'system'}: {error.strerror or error}")
        return 2
    except Exception as error:
        status = getattr(error, "exit_status", None)
        if status is None:  # a fault of ours: its traceback helps whoever mends it
            raise
        _write(sys.stderr, f"recollect {name}: {error}")
        return int(status)


def _read_settings(command: Any, name: str, arguments: Sequence[str]) -> Any:
    """Settings from flags, then environment, then defaults; a wrong one becomes a one-line message."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    settings_class = typing.get_type_hints(command)["settings"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return settings_class(
                _cli_parse_args=list(arguments), _cli_prog_name=f"recollect {name}", _cli_exit_on_error=False
            )
    except SystemExit:  # --help was asked for; a default of None, however spelt, says nothing that the help does not
        _write(sys.stdout, re.sub(r"\s*\(default:\s+(null|\0)\)", "", printed.getvalue()).rstrip())
        sys.stdout.flush()
        raise
    except ValidationError as error:
        problem = error.errors()[0]
        flag = "--" + str(problem["loc"][0]).rstrip("_").replace("_", "-") if problem["loc"] else "settings"
        if problem["type"] == "missing":
            needs = "is required" if len(problem["loc"]) == 1 else f"needs a value more than {problem['input']}"
            raise _UsageError(f"{flag} {needs}; see `recollect {name} --help`") from None
        expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise _UsageError(f"{flag}: expected {expected}; found {problem['input']!r}") from None
    except SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        raise _UsageError(f"{message}; see `recollect {name} --help`") from None


class _UsageError(Exception):
    exit_status = 2


def _overview() -> str:
    rows = "\n".join(f"  {name:<10}{verb.summary}" for name, verb in VERBS.items())
    return (
        "Recollect: the few right labels out of millions, from a memory that needs no retraining.\n\n"
        f"{USAGE}\n\n{rows}\n\n`recollect VERB --help` explains a verb's flags; `recollect demo` shows it all at once."
    )


def _write(stream: typing.TextIO, message: str) -> None:
    print(message, file=stream)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
