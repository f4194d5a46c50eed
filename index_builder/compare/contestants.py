"""The contestants of a comparison: the untrained encoder, the methods, and variants of methods with other flags.

The user lists the variants in a TOML file, one table each:

    [prime-random-batches]
    method = "prime"
    clusters = 0

`recollect train` and `recollect tune` run in processes of their own, so that the peak memory of a run can be measured
alone, and a crash does not end the comparison.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from recollect.index_builder.errors import BuildError, ContestantError
from recollect.index_builder.settings import METHODS, CompareSettings
from recollect.trainer.errors import TrainingError
from recollect.trainer.train_settings import TrainSettings

# Name of the baseline of every comparison: the pretrained encoder without training.
UNTRAINED = "untrained"
# All contestants have the same flags for the dataset, the encoder and the training budget.
_DATASET_FLAGS = ("format", "text_fields", "empty_texts", "label_language", "unknown_labels", "propensity")
_ENCODER_FLAGS = (*_DATASET_FLAGS, "encoder", "static_from", "pooling", "max_length", "label_max_length", "device")
_BUDGET_FLAGS = ("train", "epochs", "max_steps", "max_seconds", "precision")
# All contestants have the same values for the last two flags too, but a variant may override them.
SHARED_FLAGS = (*_ENCODER_FLAGS, *_BUDGET_FLAGS, "batch_size", "learning_rate")
# Flags that the comparison sets itself for each run.
_RUN_FLAGS = (
    *("dataset", "out", "preset", "scale", "seed", "vectors"),
    *("tune", "rank", "best", "minutes", "resume", "overwrite"),
)
# The name of a variant is also the name of a run folder. A variant must not end like `rae-seed1`, which is the folder
# of the method `rae` with seed 1.
_VARIANT_NAME, _SEED_SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"), re.compile(r".*-seed\d+")
_READ_BYTES = 4_096


@dataclass(frozen=True)
class Contestant:
    """A method or a variant of a method.

    Attributes:
        name: Name of its row in the table.
        flags: All arguments of `recollect train`, except the arguments that differ between seeds.
        origin: Where the user named it, for error messages.
        own: The flags that the variants file states; empty for a method.
    """

    name: str
    flags: tuple[str, ...]
    origin: str = ""
    own: tuple[str, ...] = ()

    def run_name(self, seed: int) -> str:
        """Name of a run folder. It contains the seed unless the seed is 0, the default."""
        return self.name if seed == 0 else f"{self.name}-seed{seed}"

    def parse(self, settings: CompareSettings) -> TrainSettings:
        """Parse the flags as `recollect train` does.

        Raises:
            BuildError: If a flag is invalid.
        """
        arguments = [str(settings.dataset), f"--out={settings.out / 'runs' / self.name}", *self.flags]
        try:
            return TrainSettings(_cli_parse_args=arguments, _cli_exit_on_error=False)
        except ValidationError as error:
            problem = error.errors()[0]
            expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            key = problem["loc"][0] if problem["loc"] else "flags"
            raise BuildError(f"{self.origin} {key}: expected {expected}; found {problem['input']!r}") from None
        except SettingsError as error:
            raise BuildError(f"{self.origin}: {str(error).removeprefix('error parsing CLI: ')}") from None
        except TrainingError as error:
            raise BuildError(f"{self.origin}: {error}") from None


def untrained(settings: CompareSettings) -> Contestant:
    """The untrained encoder. Its run comes first, because the other runs may train on its vectors."""
    return Contestant(UNTRAINED, (*_explicit_flags(settings, _ENCODER_FLAGS), "--epochs=0"))


def contestants(settings: CompareSettings) -> list[Contestant]:
    """The methods and the variants.

    Raises:
        BuildError: If there are none, or `recollect train` would reject the flags of one.
    """
    found = [
        Contestant(method, (*_explicit_flags(settings, SHARED_FLAGS), f"--method={method}"), f"--methods {method}")
        for method in settings.methods
    ]
    if settings.variants is not None:
        found += _variants(settings, settings.variants)
    if not found:
        raise BuildError("--methods: expected at least one method, or a file with --variants, found neither; name one")
    for each in found:
        each.parse(settings)
    return found


def as_argument(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _explicit_flags(settings: CompareSettings, names: Iterable[str]) -> list[str]:
    """The flags that the user set. For all other flags, `recollect train` applies its own defaults."""
    explicit = [name for name in names if name in settings.model_fields_set]
    return [f"--{name.replace('_', '-')}={as_argument(getattr(settings, name))}" for name in explicit]


def _variants(settings: CompareSettings, path: Path) -> Iterator[Contestant]:
    """The variants of a file.

    Raises:
        BuildError: If the file is invalid; the message names the table and the key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: expected TOML with one table for each variant, found: {error}") from None
    for name, table in tables.items():
        where = f"{path}: [{name}]"
        if not isinstance(table, dict):
            raise BuildError(f"{path}: {name}: expected one table for each variant, found a key outside any table")
        if name in (UNTRAINED, *METHODS) or not _VARIANT_NAME.fullmatch(name) or _SEED_SUFFIX.fullmatch(name):
            raise BuildError(
                f"{where}: expected a name of letters, digits, '.', '_' and '-' that no method has and that does not "
                "end in -seed and a number; rename the variant"
            )
        if "method" not in table:
            raise BuildError(f'{where}: expected the key "method", found none; add one, as in method = "rae"')
        own = tuple(_variant_flag(f"{where} {key}", key, value) for key, value in table.items())
        shared = _explicit_flags(settings, (flag for flag in SHARED_FLAGS if flag not in table))
        yield Contestant(name, (*shared, *own), where, own)


def _variant_flag(where: str, key: str, value: Any) -> str:
    """Convert a key of a variant and its value to an argument of `recollect train`."""
    if key in (*_ENCODER_FLAGS, *_BUDGET_FLAGS, *_RUN_FLAGS):
        raise BuildError(
            f"{where}: expected a flag that may differ between variants, found a flag that the comparison sets; "
            "remove it"
        )
    if key not in TrainSettings.model_fields:
        raise BuildError(f"{where}: expected a flag of `recollect train`, with underscores; found an unknown name")
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if not isinstance(value, (str, int, float, list)):
        raise BuildError(f"{where}: expected a string, a number, true, false or a list, found {type(value).__name__}")
    return f"--{flag}={as_argument(value)}"


def run_recollect(run_name: str, verb: str, *arguments: str) -> None:
    """Run a verb of `recollect` in a new process and copy its standard error to ours.

    Raises:
        ContestantError: If the process fails; the message holds the last line of its standard error.
    """
    command = [sys.executable, "-m", "recollect", verb, *arguments]
    # Environment variables are removed: they would change every contestant, and the report would not show it.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("RECOLLECT_")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        try:
            last_line = _copy_to_stderr(process.stderr)
            status = process.wait()
        except BaseException:  # after Ctrl-C, the process of the training must end too
            process.terminate()
            raise
    if status == 0:
        return
    if status < 0:
        last_line = f"`recollect {verb}` was killed by {signal.Signals(-status).name}; memory may have run out"
    reason = last_line.removeprefix(f"recollect {verb}: ")
    raise ContestantError(f"{run_name}: {reason} (finished runs are kept; fix the cause and run the command again)")


def _copy_to_stderr(stream: IO[bytes]) -> str:
    """Copy a stream to standard error as it arrives, and return its last line."""
    decoder, tail = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while chunk := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        tail = (tail + text)[-_READ_BYTES:]
    lines = [line.strip() for line in re.split(r"[\r\n]", tail)]
    return next((line for line in reversed(lines) if line), "it printed no message")
