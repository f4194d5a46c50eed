"""Answer options: the options that a caller chooses, their bounds, and the bundle's defaults for all others.

The HTTP service, the answer cache, the command line and the Python API share these options.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from service.bundle.manifest import MOST_KEYS, Defaults


def _require_words(query: str) -> str:
    """Refuse a text that is not valid Unicode, or has only white space, control characters and format characters."""
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ValueError("the query contains half of a surrogate pair, which is not a character; remove it") from None
    if all(unicodedata.category(character) in ("Cc", "Cf", "Zs", "Zl", "Zp") for character in query):
        raise ValueError("the query is empty; send some words")
    return query


# The part of this check that JSON Schema can express: at least one character is neither white space nor a control
# character.
_WORDS = {"minLength": 1, "pattern": r"[^\s\x00-\x1f\x7f-\xa0]"}

Query = Annotated[
    str,
    AfterValidator(_require_words),
    Field(examples=["turn an object into a JSON string"], json_schema_extra=_WORDS),
]
Lambda = Annotated[float, Field(ge=0, le=1, description="weight of instances against labels; 1 uses instances only")]
Temperature = Annotated[float, Field(ge=1e-4, le=100, description="tau of the softmax over the retrieved keys")]
TopB = Annotated[int, Field(ge=1, le=MOST_KEYS, description="number of keys to retrieve")]
TopK = Annotated[int, Field(ge=1, le=1_000, description="maximum number of labels to return")]
Threshold = Annotated[float, Field(ge=0, le=1, description="minimum score of a returned label")]


@dataclass(frozen=True)
class AnswerOptions:
    """All options that decide how a query is answered.

    Attributes:
        lambda_: Weight of instances against labels, from 0 (labels only) to 1 (instances only).
        temperature: Tau of the softmax over the retrieved keys.
        top_b: Number of keys to retrieve.
        top_k: Maximum number of labels to return.
        threshold: Minimum score of a returned label.
        allow: Uids of the only labels that may be returned; None allows all.
        deny: Uids of labels that are never returned.
        explain: Whether to list the terms of each score.
    """

    lambda_: float
    temperature: float
    top_b: int
    top_k: int
    threshold: float = 0.0
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    explain: bool = False

    @property
    def filtered(self) -> bool:
        return self.allow is not None or bool(self.deny)


def resolve_options(
    defaults: Defaults,
    *,
    lambda_: float | None = None,
    temperature: float | None = None,
    top_b: int | None = None,
    top_k: int | None = None,
    threshold: float = 0.0,
    allow: Iterable[str] | None = None,
    deny: Iterable[str] | None = None,
    explain: bool = False,
) -> AnswerOptions:
    """Complete the options that a caller chose with the bundle's defaults; None means "not chosen"."""
    return AnswerOptions(
        lambda_=defaults.lambda_ if lambda_ is None else lambda_,
        temperature=defaults.temperature if temperature is None else temperature,
        top_b=defaults.top_b if top_b is None else top_b,
        top_k=defaults.top_k if top_k is None else top_k,
        threshold=threshold,
        allow=None if allow is None else tuple(allow),
        deny=() if deny is None else tuple(deny),
        explain=explain,
    )
