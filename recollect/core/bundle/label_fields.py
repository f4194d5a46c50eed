"""Label fields: what a label has besides its uid and its text.

    {"name": "Wine", "names": {"de": "Wein"}, "notation": "641.2", "parents": ["drinks"], "groups": ["food"], ...}

A term is a pair of a field and a value, such as `["groups","food"]`, by which filters find labels. A list has a term
for each of its items. An object has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recollect.core.text_lines import is_deeper
from recollect.core.texts import UidText

# Names that a label has in an answer, and names that a record of a label may have for another purpose.
RESERVED = frozenset(
    {
        *("uid", "text", "score", "probability", "because", "ranked_by", "training_count", "position"),
        *("fields", "label", "labels", "vector", "weight", "exclude", "excluded", "version", "sequence"),
    }
)
# Longest JSON of the fields of a label, in bytes, and longest term, in characters. A longer value has no term.
MAX_FIELDS, MAX_TERM = 20_000, 1_000
# Fields are nested at most so deep. An answer in a bulk file is nested deeper, and libraries have limits.
_MAX_DEPTH = 50

Value = str | int | float | bool
# A language, as BCP 47 writes it, such as `de` or `pt-BR`.
Language = Annotated[str, Field(min_length=1, max_length=35, pattern=r"^[A-Za-z0-9-]+$")]
Name = Annotated[str, Field(min_length=1)]


class LabelFields(BaseModel):
    """What a label can have besides its uid and its text. A further field is kept as JSON, under its own name.

    A field is declared here, and nowhere else: data sets, requests, Python, the log, bundles, answers and
    `recollect export` have it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    name: Name | None = Field(None, description="what people see; the text, if a label has none")
    names: dict[Language, Name] = Field({}, description="the name in several languages")
    notation: str | None = Field(None, description="the code of the label in its classification")
    parents: list[UidText] = Field([], description="uids of broader labels")
    groups: list[str] = Field([], description="groups to which the label belongs")

    def fields(self) -> dict[str, Any]:
        """The fields that the label has."""
        own = {name: getattr(self, name) for name in LabelFields.model_fields} | (self.model_extra or {})
        return {name: value for name, value in own.items() if value is not None and value != {} and value != []}


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields of a label, and return those that it has.

    Raises:
        ValueError: If a name is reserved, a value has a wrong type or is no JSON, or the fields are too long. The
            message is one line that begins with the name of the field.
    """
    if not fields:
        return {}
    _require_free_names(fields)
    try:
        found = LabelFields.model_validate(fields).fields()
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"])).removesuffix(".[key]")
        raise ValueError(f"{name}: {problem['msg']}; found {problem['input']!r:.60}") from None
    _require_short_json(found)
    return found


def require_storable(fields: LabelFields) -> None:
    """Check fields whose types are right: their names and their size; a ValueError as of `checked_fields`."""
    found = fields.fields()
    _require_free_names(found)
    _require_short_json(found)


def _require_free_names(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name in RESERVED or not name.strip():
            shown = name or "the empty name"
            raise ValueError(f"{shown}: expected another name of a field, this one is reserved; rename it or remove it")


def _require_short_json(fields: Mapping[str, Any]) -> None:
    try:
        size = len(to_json(fields).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"fields: expected values of JSON, found: {error}") from None
    if is_deeper(fields, _MAX_DEPTH):
        raise ValueError(f"fields: expected lists and objects of at most {_MAX_DEPTH} levels, found more")
    if size > MAX_FIELDS:
        raise ValueError(f"fields: expected at most {MAX_FIELDS:,} bytes of JSON, found {size:,}; shorten them")


def to_json(fields: Any) -> str:
    """The fields as a JSON object; an empty text if there are none."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False) if fields else ""


def from_json(text: str) -> dict[str, Any]:
    """The fields in a JSON object. Damaged content has no fields: an answer needs none."""
    try:
        fields = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def term(field: str, value: Value) -> str:
    """The term of a value of a field. Equal numbers have equal terms."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps([field, value], ensure_ascii=False, separators=(",", ":"))


def prefix_of(field: str) -> str:
    """The beginning of all terms of a field."""
    return term(field, "").removesuffix('""]')


def pair_of(term_: str) -> tuple[str, Value]:
    """The field and the value of a term; two empty texts if the term is damaged."""
    try:
        field, value = json.loads(term_)
    except (ValueError, TypeError, RecursionError):
        return "", ""
    return (field, value) if isinstance(field, str) and isinstance(value, Value) else ("", "")


def name_of(fields: Mapping[str, Any], text: str, language: str | None = None) -> str:
    """The name of a label in a language, or the name that people see, or its text.

    The name of a wider language is better than none: `de` for `de-AT` (RFC 4647, Lookup).
    """
    names = fields.get("names")
    if language is not None and isinstance(names, dict):
        known = {str(each).lower(): name for each, name in names.items() if isinstance(name, str)}
        wanted = language.lower()
        while wanted:
            if wanted in known:
                return known[wanted]
            wanted = wanted.rpartition("-")[0]
    name = fields.get("name")
    return name if isinstance(name, str) else text


def names_of(fields: Mapping[str, Any]) -> list[str]:
    """The different names of a label, in all languages."""
    by_language = names.values() if isinstance(names := fields.get("names"), dict) else ()
    return [*dict.fromkeys(name for name in (fields.get("name"), *by_language) if isinstance(name, str))]


def terms(fields: Mapping[str, Any]) -> list[str]:
    """The different terms of the fields of a label."""
    pairs = ((name, each) for name, value in fields.items() for each in (value if isinstance(value, list) else [value]))
    found = dict.fromkeys(term(name, each) for name, each in pairs if isinstance(each, Value))
    return [each for each in found if len(each) <= MAX_TERM]
