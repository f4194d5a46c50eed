"""The command line: `recollect VERB ...`.

Exit status: 0 success, 1 failure, 2 wrong usage or wrong input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import re
import sys
import typing
from collections.abc import Sequence
from typing import Any

from recollect.cli.verbs import VERBS, UsageError, describe, load_command, require_extra, settings_class
from recollect.core.errors import RecollectError
from recollect.core.system.console import print_line, printable

# What to do after an error of the operating system.
_NEXT_STEPS: dict[type[OSError], str] = {
    FileNotFoundError: "name an existing file or folder",
    FileExistsError: "choose another path",
    IsADirectoryError: "name a file",
    NotADirectoryError: "choose another path",
    PermissionError: "choose a path that this user may read or write",
}

# Errors of a disk that is full, a quota, and a limit of the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Flags whose value may be left out, and the value that they have then.
_LEFT_OUT_VALUES = {"--ray": "auto"}

# How the help writes a value, by the Python type that pydantic writes.
_VALUES = {
    "int": "N",
    "float": "N",
    "str": "TEXT",
    "SecretStr": "TEXT",
    "Path": "PATH",
    "{int,all}": "{N,all}",
    "{Path,str}": "PATH",
    "ByteSize": "SIZE",
    "list[str]": "A,B",
    "tuple[str,...]": "A,B",
    "list[int]": "N,N",
    "list[float]": "N,N",
    "tuple[float,float]": "N,N",
}
_VALUE = re.compile(rf"(--[\w-]+ )({'|'.join(map(re.escape, _VALUES))})(?=[\] \n])( *)")

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

        _write(sys.stdout, f"recollect {importlib.metadata.version('recollect-xmc')}")
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
        with require_extra(VERBS[name].extra):
            command = load_command(name)
            result = command(_from_arguments(name, arguments))
        if isinstance(result, int):
            return result
        for line in [result] if isinstance(result, str) else result or ():
            print_line(line)
        return 0
    except KeyboardInterrupt:
        _write(sys.stderr, f"recollect {name}: interrupted")
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        _write(sys.stderr, f"recollect {name}: {_describe(error)}")
        return 2
    except RecollectError as error:  # any other error is a bug, which keeps its traceback
        _write(sys.stderr, f"recollect {name}: {error}")
        return error.exit_status


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    if reason.startswith("No usable temporary directory"):
        return "TMPDIR: expected a folder for temporary files, found none; name a folder that this user may write to"
    # An error of a copy names both files.
    path = (error.filename2 if error.errno in _FULL else None) or error.filename
    next_step = _NEXT_STEPS.get(type(error), "free some space" if error.errno in _FULL else "")
    return f"{path or 'system'}: {reason}" + (f"; {next_step}" if path and next_step else "")


def _from_arguments(name: str, arguments: Sequence[str]) -> Any:
    """Read settings from flags. A setting without a flag comes from its environment variable or its default.

    Raises:
        UsageError: If a flag is wrong. The message is one line.
        SystemExit: After `--help`.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from recollect.core.settings import as_flag

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return settings_class(name)(
                _cli_parse_args=_with_values(arguments), _cli_prog_name=f"recollect {name}", _cli_exit_on_error=False
            )
    except SystemExit:  # after --help
        _write(sys.stdout, _in_groups(_plain_help(printed.getvalue()), settings_class(name)))
        sys.stdout.flush()
        raise
    except ValidationError as error:
        see_help = f"; see `recollect {name} --help`" if error.errors()[0]["type"] == "missing" else ""
        raise UsageError(describe(error, as_flag) + see_help) from None
    except SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        raise UsageError(f"{message}; {_nearest_flag(name, message)}see `recollect {name} --help`") from None


def _plain_help(text: str) -> str:
    """A help text without Python's types, and without defaults of None."""

    def plain(value: re.Match[str]) -> str:
        word = _VALUES[value[2]]
        shift = len(value[2]) - len(word) if value[3] else 0  # the descriptions stay in their column
        return value[1] + word + " " * (len(value[3]) + shift)

    text = re.sub(r"\s*\(default:\s+(null|\0)\)", "", text)
    return _VALUE.sub(plain, re.sub(r"list\[(\{[\w,]+\})\]", r"\1", text)).rstrip()


def _in_groups(text: str, settings: Any) -> str:
    """A help text with its flags under the headings of the settings, and with the required flags alone in its usage."""
    if not settings.help_groups:
        return text
    from recollect.core.settings import as_flag

    start, flags = text.split("\noptions:\n")
    entries = {re.split("[, ]", entry.strip(), maxsplit=1)[0]: entry for entry in re.split(r"\n(?=  -)", flags)}
    required = [entry.split("  ")[1] for entry in entries.values() if entry.endswith("(required)")]
    usage, about = start.split("\n\n", 1)
    words = usage.split()
    parts = [" ".join([*words[:3], *required, "[FLAGS]", words[-1]]), about]
    for title, names in settings.help_groups.items():
        named = [as_flag(str(settings.model_fields[name].alias or name)) for name in names]
        own = [entries.pop(flag) for flag in named if flag in entries]
        parts.append("\n".join([f"{title}:", *own, ""]))
    return "\n".join([*parts[:1], "", *parts[1:], "others:", *entries.values()])


def _with_values(arguments: Sequence[str]) -> list[str]:
    """The arguments of a verb; flags whose value may be left out, and is left out, get their value."""
    return [
        f"{flag}={_LEFT_OUT_VALUES[flag]}" if flag in _LEFT_OUT_VALUES and following.startswith("-") else flag
        for flag, following in zip(arguments, [*arguments, "-"][1:], strict=True)
    ]


def _nearest_flag(name: str, message: str) -> str:
    """Advice on the first unknown flag: the known flag that resembles it, or that the value needs no flag."""
    unknown = re.search(r"unrecognized arguments:.*?(--[\w-]+)", message)
    if unknown is None:
        return ""
    from recollect.core.settings import as_flag

    fields = settings_class(name).model_fields
    known = [as_flag(str(field.alias or field_name)) for field_name, field in fields.items()]
    if unknown[1] in known:  # a value that is named by its place
        return f"give the value without {unknown[1]}; "
    nearest = difflib.get_close_matches(unknown[1], known, n=1)
    return f"did you mean {nearest[0]}? " if nearest else ""


def _overview() -> str:
    rows = "\n".join(f"  {name:<10}{verb.summary}" for name, verb in VERBS.items())
    return (
        "Recollect: finds the few labels out of millions that fit a text.\n\n"
        f"{USAGE}\n\n{rows}\n\n`recollect VERB --help` explains the flags of a verb; `recollect demo` runs all steps."
    )


def _write(stream: typing.TextIO, message: str) -> None:
    print("\n".join(map(printable, message.split("\n"))), file=stream)  # noqa: T201
