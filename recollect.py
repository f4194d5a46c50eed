"""Recollect's command line and Python API.

    import recollect

    recollect.train("data/", out="run/")
    recollect.build("run/", store="store/", activate=True)
    recollect.open("store/").predict("garden chair", top_k=5)

This module imports `trainer`, `index_builder` and `service` only when a verb or a function runs, so `import recollect`
and `recollect --help` are fast. A function takes the flags of its verb as keywords (`max_length=32`, `lambda_=0.5`) and
reads the same environment variables. For a mistake that a user can correct, a function raises an error in
`recollect.ERRORS`. No function writes to standard output.

Exit status of the command line: 0 success, 1 failure, 2 wrong usage or wrong input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import keyword
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

    from service.model import Model

    ERRORS: tuple[type[Exception], ...]

__all__ = [
    "ERRORS",
    "UsageError",
    "build",
    "evaluate",
    "export",
    "main",
    "open",
    "predict_file",
    "push",
    "rank",
    "train",
    "tune",
]

_PACKAGES = ("trainer", "index_builder", "service")
# The folder of the submodule `recollect.sklearn`, which Python imports only when a program asks for it.
__path__ = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "index_builder", "estimator")]


# ---- Python API ----


class UsageError(Exception):
    """A call is wrong: an unknown flag or keyword, a value out of range, or a package that is not installed."""

    exit_status = 2


def open(  # noqa: A001 - the name that a user expects: recollect.open(...)
    store: str | Path,
    *,
    version: str = "current",
    verify_key: str | Path | None = None,
    bundle_cache: str | Path | None = None,
    threads: int = 1,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    live: Literal["off", "read", "write"] = "read",
    sign: str | Path | None = None,
) -> Model:
    """Open a version of a bundle store, to answer queries in this process.

    Args:
        store: Bundle store: a folder, or a URL such as `s3://bucket/store`.
        version: Version to open; "current" means the store's current version.
        verify_key: PEM file with Ed25519 public keys, one of which must have signed the bundle; None accepts unsigned
            bundles.
        bundle_cache: Folder for bundles that are downloaded from a store at a URL, and with `verify_key` for private
            copies of bundles; None means ~/.cache/recollect.
        threads: Threads for each call of `predict`; 0 means one for each core.
        device: Device that encodes and searches.
        live: `read`: the model has the live entries of the store. `write`: its own changes are also written to the
            store. `off`: it has the bundle alone.
        sign: PEM file with the private key that signs the changes, if the log of the store is signed.
    """
    given = {"store": store, "verify_key": verify_key, "bundle_cache": bundle_cache}
    with _require_extra("serve"):
        from service.model import open_model
        from service.settings import ServiceSettings

        read = _from_keywords(
            "open", {name: value for name, value in given.items() if value is not None}, ServiceSettings
        )
        return open_model(
            read.store, version, read.verify_key, read.bundle_cache, threads, device, live, Path(sign) if sign else None
        )


def predict_file(input: str | Path, output: str | Path, *, store: str | Path, **flags: Any) -> int:  # noqa: A002
    """Answer all queries of a file with several processes, and write them to another file.

    Returns:
        The number of rows.
    """
    with _require_extra("serve"):
        settings = _from_keywords("predict", {"input": input, "output": output, "store": store, **flags})
        from service.bulk.job import predict_file as predict_rows

        return predict_rows(settings)


def train(dataset: str | Path, *, out: str | Path, **flags: Any) -> Path:
    """Train an encoder on a dataset folder, and write a run folder: `checkpoint/` and `memory/`.

    Returns:
        The run folder.
    """
    with _require_extra("train"):
        settings = _from_keywords("train", {"dataset": dataset, "out": out, **flags})
        if settings.best:
            from index_builder.best.best import train_best

            train_best(settings)
        else:
            from index_builder.ranking.after_training import train_and_rank

            train_and_rank(settings)
    return Path(out)


def tune(run: str | Path, **flags: Any) -> dict[str, float]:
    """Choose lambda, tau, b and label_key_alpha on held-out instances, and make them the defaults of the run.

    Returns:
        The new defaults, `lambda`, `temperature`, `top_b` and `label_key_alpha`, and their `score` in percent.
    """
    with _require_extra("train"):
        settings = _from_keywords("tune", {"run": run, **flags})
        from index_builder.ranking.after_training import tune_and_rank

        return tune_and_rank(settings)[0].best.as_json()


def rank(run: str | Path, **flags: Any) -> dict[str, Any]:
    """Fit a ranker of labels on left-out instances, and keep it in the run if it ranks better than the votes.

    Returns:
        `kept`, and the `gains` of the ranker over the votes. `recollect rank --json` prints the same dict as JSON.
    """
    with _require_extra("build"):
        settings = _from_keywords("rank", {"run": run, **flags})
        from index_builder.ranking.rank import rank_run

        return rank_run(settings).as_json()


def build(run: str | Path, *, store: str | Path, **flags: Any) -> str:
    """Build a bundle from a run folder, check it, and publish it in a store (a folder or a URL).

    Returns:
        The new version.
    """
    with _require_extra("build"):
        settings = _from_keywords("build", {"run": run, "store": store, **flags})
        from index_builder.build import build as build_bundle

        return build_bundle(settings)


def push(run: str | Path, *, to: str, **flags: Any) -> str:
    """Upload a run to the Hugging Face hub, with a model card and checksums. The token comes from HF_TOKEN.

    Returns:
        The address of the uploaded commit, `hf://user/name@commit`, which `build` reads.
    """
    with _require_extra("build"):
        settings = _from_keywords("push", {"run": run, "to": to, **flags})
        from index_builder.hub.push import push as push_run

        return push_run(settings)


def evaluate(dataset: str | Path, *, store: str | Path, **flags: Any) -> dict[str, Any]:
    """Measure a bundle on the test split of a dataset folder.

    Returns:
        `version`, `queries` (their number) and `rows`: for each combination of `lambda`, `temperature` and `top_b`, a
        dict with these three and every metric in percent (None if undefined). `recollect evaluate --json` prints the
        same dict as JSON.
    """
    with _require_extra("build"):
        settings = _from_keywords("evaluate", {"dataset": dataset, "store": store, **flags})
        from index_builder.evaluation.evaluate import evaluate as evaluate_bundle

        return vars(evaluate_bundle(settings))


def export(store: str | Path, *, out: str | Path, **flags: Any) -> Path:
    """Write the memory of a version as a dataset folder, which `train` reads.

    Returns:
        The dataset folder.
    """
    with _require_extra("serve"):
        settings = _from_keywords("export", {"store": store, "out": out, **flags})
        from service.export import export_version

        export_version(settings)
    return Path(out)


def _load_errors() -> tuple[type[Exception], ...]:
    """The base classes of all errors that a user can correct, for `except recollect.ERRORS as error`.

    The packages have no common base class, because `trainer` and `service` share no code.
    """
    from index_builder.errors import BuildError
    from service.errors import ServiceError
    from trainer.errors import TrainerError

    return UsageError, TrainerError, BuildError, ServiceError


if not TYPE_CHECKING:

    def __getattr__(
        name: str,
    ) -> Any:  # ERRORS is loaded when it is first used, because loading it imports the packages
        if name == "ERRORS":
            return _load_errors()
        if name == "sklearn":
            return importlib.import_module("recollect.sklearn")
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")


def _from_keywords(function: str, keywords: Mapping[str, Any], settings_class: Any = None) -> Any:
    """Read settings from keywords. A setting without a keyword comes from its environment variable or its default.

    Args:
        function: Name of the public function, which is also the verb.
        keywords: Keywords of the call.
        settings_class: Class of the settings; None means the settings of the verb.

    Raises:
        UsageError: If a keyword is unknown or its value is wrong. The message is one line.
    """
    from pydantic import ValidationError

    settings_class = settings_class or _settings_class(function)
    fields = {name: field for name, field in settings_class.model_fields.items() if name != "json_"}
    for name in keywords:
        if name not in fields:
            raise UsageError(f"recollect.{function}: unknown keyword {name}; known: {', '.join(sorted(fields))}")
    values = {}
    for name, given in keywords.items():
        is_one_of_list = typing.get_origin(fields[name].annotation) is list and isinstance(given, int | float)
        value = [given] if is_one_of_list else str(given) if isinstance(given, Path) else given
        values[str(fields[name].validation_alias or name)] = value
    try:
        return settings_class(**values)
    except ValidationError as error:
        raise UsageError(f"recollect.{function}: {_describe(error, _as_keyword)}") from None


def _as_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


# ---- Command line ----


class Verb(NamedTuple):
    module: str
    extra: str
    summary: str


VERBS = {
    "demo": Verb("index_builder.cli", "build,serve", "run all steps on the built-in sample, and serve the result"),
    "sample": Verb("trainer.cli", "train", "write the built-in sample dataset"),
    "presets": Verb("trainer.cli", "train", "list the settings of published experiments"),
    "plan": Verb("trainer.cli", "train", "estimate the memory and the hours of a training before it begins"),
    "train": Verb("index_builder.cli", "train", "train an encoder on a dataset and encode its memory"),
    "tune": Verb("index_builder.cli", "train", "choose lambda, tau, b and label keys on held-out instances"),
    "rank": Verb("index_builder.cli", "build", "fit a ranker of labels on left-out instances"),
    "build": Verb("index_builder.cli", "build", "build a bundle from a run and publish it in a store"),
    "push": Verb("index_builder.cli", "build", "upload a run to the Hugging Face hub"),
    "evaluate": Verb("index_builder.cli", "build", "measure a bundle on the test split of a dataset"),
    "compare": Verb("index_builder.cli", "build", "train several methods with the same budget and write a table"),
    "predict": Verb("service.cli", "serve", "answer a query or a file of queries, without a server"),
    "serve": Verb("service.cli", "serve", "answer queries over HTTP"),
    "memory": Verb("service.cli", "serve", "show the live memory of a store"),
    "extend": Verb("service.cli", "serve", "add instances and labels to a live memory, and remove some"),
    "compact": Verb("index_builder.cli", "build", "publish a bundle with the live memory of a store"),
    "versions": Verb("service.cli", "serve", "list the bundles of a store"),
    "activate": Verb("service.cli", "serve", "make a version current"),
    "promote": Verb("service.cli", "serve", "make the canary current"),
    "rollback": Verb("service.cli", "serve", "remove the canary, or make the previous version current again"),
    "log": Verb("service.cli", "serve", "list all activations and rollbacks of a store"),
    "verify": Verb("service.cli", "serve", "check the files of a version and its golden queries"),
    "export": Verb("service.cli", "serve", "write the memory of a version as a dataset"),
    "copy": Verb("service.cli", "serve", "copy a version to another store"),
    "prune": Verb("service.cli", "serve", "remove old versions from a store"),
    "protect": Verb("service.cli", "serve", "protect a version against prune"),
    "unprotect": Verb("service.cli", "serve", "remove the protection of a version"),
}

# What to do after an error of the operating system.
_NEXT_STEPS: dict[type[OSError], str] = {
    FileNotFoundError: "name an existing file or folder",
    FileExistsError: "choose another path",
    IsADirectoryError: "name a file",
    NotADirectoryError: "choose another path",
    PermissionError: "choose a path that this user may read or write",
}

# Flags whose value may be left out, and the value that they have then.
_LEFT_OUT_VALUES = {"--ray": "local"}

USAGE = "usage: recollect VERB [--help] ..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    try:
        status = _choose_verb(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the program that reads our output has exited, as in `recollect versions | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard the remaining output
        return 1
    return status


def _choose_verb(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _write(sys.stdout if arguments else sys.stderr, _overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        import importlib.metadata

        _write(sys.stdout, f"recollect {importlib.metadata.version('recollect')}")
        return 0
    name = arguments[0]
    if name not in VERBS:
        nearest = difflib.get_close_matches(name, VERBS, n=1)
        known = f"did you mean `recollect {nearest[0]}`?" if nearest else f"one of: {', '.join(VERBS)}"
        _write(sys.stderr, f"recollect: expected a verb, found {name!r}; {known}")
        return 2
    return _run(name, arguments[1:])


def _run(name: str, arguments: Sequence[str]) -> int:
    try:
        with _require_extra(VERBS[name].extra):
            command = _load_command(name)
            settings = _from_arguments(name, arguments)
            return command(settings) or 0
    except KeyboardInterrupt:
        _write(sys.stderr, f"recollect {name}: interrupted")
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        next_step = f"; {_NEXT_STEPS[type(error)]}" if error.filename and type(error) in _NEXT_STEPS else ""
        _write(sys.stderr, f"recollect {name}: {error.filename or 'system'}: {error.strerror or error}{next_step}")
        return 2
    except Exception as error:
        status = getattr(error, "exit_status", None)
        if status is None:  # an error without an exit status is a bug, which keeps its traceback
            raise
        _write(sys.stderr, f"recollect {name}: {error}")
        return int(status)


def _from_arguments(name: str, arguments: Sequence[str]) -> Any:
    """Read settings from flags. A setting without a flag comes from its environment variable or its default.

    Raises:
        UsageError: If a flag is wrong. The message is one line.
        SystemExit: After `--help`.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return _settings_class(name)(
                _cli_parse_args=_with_values(arguments), _cli_prog_name=f"recollect {name}", _cli_exit_on_error=False
            )
    except SystemExit:  # after --help; the help does not show a default of None
        _write(sys.stdout, re.sub(r"\s*\(default:\s+(null|\0)\)", "", printed.getvalue()).rstrip())
        sys.stdout.flush()
        raise
    except ValidationError as error:
        see_help = f"; see `recollect {name} --help`" if error.errors()[0]["type"] == "missing" else ""
        raise UsageError(_describe(error, _as_flag) + see_help) from None
    except SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        raise UsageError(f"{message}; {_nearest_flag(name, message)}see `recollect {name} --help`") from None


def _with_values(arguments: Sequence[str]) -> list[str]:
    """The arguments of a verb; flags whose value may be left out, and is left out, get their value."""
    following = [*arguments[1:], "-"]
    return [
        f"{each}={_LEFT_OUT_VALUES[each]}" if each in _LEFT_OUT_VALUES and following[at].startswith("-") else each
        for at, each in enumerate(arguments)
    ]


def _nearest_flag(name: str, message: str) -> str:
    """Advice on the first unknown flag: the known flag that resembles it, or that the value needs no flag."""
    unknown = re.search(r"unrecognized arguments:.*?(--[\w-]+)", message)
    if unknown is None:
        return ""
    fields = _settings_class(name).model_fields
    known = {_as_flag(str(field.alias or each)): field for each, field in fields.items()}
    if unknown[1] in known:  # a value that is named by its place
        return f"give the value without {unknown[1]}; "
    nearest = difflib.get_close_matches(unknown[1], known, n=1)
    return f"did you mean {nearest[0]}? " if nearest else ""


def _as_flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def _overview() -> str:
    rows = "\n".join(f"  {name:<10}{verb.summary}" for name, verb in VERBS.items())
    return (
        "Recollect: finds the few labels out of millions that fit a text.\n\n"
        f"{USAGE}\n\n{rows}\n\n`recollect VERB --help` explains the flags of a verb; `recollect demo` runs all steps."
    )


def _write(stream: typing.TextIO, message: str) -> None:
    """Print a message. Control characters are escaped, because they could change the terminal's state."""
    escaped = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in message)
    print(escaped, file=stream)  # noqa: T201


# ---- Shared by both ----


def _load_command(name: str) -> Any:
    """Import the function of a verb."""
    return getattr(importlib.import_module(VERBS[name].module), name)


def _settings_class(name: str) -> Any:
    """The class that declares the flags of a verb. It is the type of the argument `settings` of the verb's function."""
    return typing.get_type_hints(_load_command(name))["settings"]


@contextlib.contextmanager
def _require_extra(extra: str) -> Iterator[None]:
    """If a package of another project is missing, raise an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _PACKAGES:
            raise
        raise UsageError(f"needs {error.name}; pip install 'recollect[{extra}]'") from error


def _describe(error: ValidationError, spell: typing.Callable[[str], str]) -> str:
    """Describe the first problem of a validation error in one line."""
    problem = error.errors()[0]
    name = spell(str(problem["loc"][0])) if problem["loc"] else "settings"
    if problem["type"] == "missing":
        return f"{name} " + (
            "is required" if len(problem["loc"]) == 1 else f"needs one more value than {problem['input']}"
        )
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}: expected {expected}; found {problem['input']!r}"


if __name__ == "__main__":
    sys.exit(main())
