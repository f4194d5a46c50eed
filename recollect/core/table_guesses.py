"""Guesses about a table, for messages: flags that could read it, and a separator that could be between labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Usual names of columns, from which a message makes its example.
_TEXT_NAMES = frozenset(
    ["title", "text", "name", "headline", "description", "abstract", "summary", "content", "body", "query", "question"]
)
_LABEL_NAMES = frozenset(
    [
        "label",
        "labels",
        "category",
        "categories",
        "tag",
        "tags",
        "subject",
        "subjects",
        "topic",
        "topics",
        "class",
        "classes",
        "keywords",
        "genre",
        "genres",
    ]
)
_SEPARATORS = ("|", ";")
# Number of rows that an example reads to find a separator.
_EXAMPLE_ROWS = 100
# Reads the given columns of all rows: the place and the values of each.
Read = Callable[[Sequence[str]], Iterable[tuple[str, dict[str, Any]]]]


def several_in_one(labels: Sequence[str]) -> str | None:
    """The usual separator that is in more than a tenth of some labels; None if there is none."""
    return next((each for each in _SEPARATORS if 10 * sum(each in label for label in labels) > len(labels)), None)


def example_flags(columns: Sequence[str], read: Read) -> dict[str, str]:
    """Flags with which a table could be read, with words in capitals where its columns have no usual names.

    Args:
        columns: The names of its columns.
        read: Reads the given columns of all rows.
    """
    label = next((name for name in columns if name.casefold() in _LABEL_NAMES), None)
    texts = [name for name in columns if name.casefold() in _TEXT_NAMES]
    if not texts and label is not None and len(columns) == 2:
        texts = [name for name in columns if name != label]
    flags = {"text_columns": ",".join(texts) or "NAMES", "label_column": label or "NAME"}
    if label is not None:
        values = [row.get(label) for _, row in itertools.islice(read([label]), _EXAMPLE_ROWS)]
        found = [each for each in _SEPARATORS if any(isinstance(value, str) and each in value for value in values)]
        if found:
            flags["label_separator"] = found[0]
    return flags
