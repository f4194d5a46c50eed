"""Variants: methods with other flags, as a TOML file lists them; this is how ablations are run.

[prime-random-batches]
method = "prime"
clusters = 0
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from index_builder.errors import BuildError
from trainer.train_settings import TrainSettings

# A name is a row's and a folder's; what ends like another seed's folder could be taken for it.
_NAME, _SEED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"), re.compile(r".*-seed\d+")


def read_variants(path: Path, taken: set[str], decided: set[str]) -> dict[str, dict[str, str]]:
    """Each variant's flags, by key.

    Args:
        path: The TOML file.
        taken: Names that a variant may not have.
        decided: Flags that are the same for all contestants, or that each run has of its own.

    Raises:
        BuildError: Naming file, table and key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: expected TOML, a table a variant, found: {error}") from None
    for name, table in tables.items():
        _check_table(path, name, table, taken)
    return {name: {key: _flag(path, name, key, table[key], decided) for key in table} for name, table in tables.items()}


def _check_table(path: Path, name: str, table: Any, taken: set[str]) -> None:
    where = f"{path}: [{name}]"
    if not isinstance(table, dict):
        raise BuildError(f"{path}: {name}: expected tables, one a variant, found a key outside any; put it into one")
    if name in taken:
        raise BuildError(f"{where}: expected a name of its own, found a method's; rename it, as in [{name}-variant]")
    if not _NAME.fullmatch(name) or _SEED.fullmatch(name):
        raise BuildError(
            f"{where}: expected a name of letters, digits, '.', '_' and '-', with no seed at its end; rename it"
        )
    if "method" not in table:
        raise BuildError(f'{where}: expected a method, found none; add one, as in method = "rae"')


def _flag(path: Path, name: str, key: str, value: Any, decided: set[str]) -> str:
    """A key and its value as an argument of `recollect train`."""
    where = f"{path}: [{name}] {key}"
    if key in decided:
        raise BuildError(
            f"{where}: expected a flag in which variants may differ, found one that the comparison decides"
        )
    if key not in TrainSettings.model_fields:
        raise BuildError(f"{where}: expected a flag of `recollect train`, with underscores; found none of that name")
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if not isinstance(value, (str, int, float)):
        raise BuildError(f"{where}: expected a word, a number, true, false or a list, found {type(value).__name__}")
    return f"--{flag}={value}"
