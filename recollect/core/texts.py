"""Checks of the texts that users send: queries, instances, labels and uids. Every door decides with them."""

from __future__ import annotations

import numbers
import unicodedata
from typing import Annotated, Any

from pydantic import BeforeValidator

# Characters that no uid may contain, as a regular expression: uids are parts of paths and of lines.
CONTROL_CHARACTERS = r"[\x00-\x1f\x7f]"
# Unicode categories of white space, control characters and format characters, such as a zero-width space, a byte order
# mark or a soft hyphen.
_BLANK_CATEGORIES = ("Cc", "Cf", "Zs", "Zl", "Zp")
# The characters of other categories that are not drawn: Unicode's Default_Ignorable_Code_Point, and the empty Braille
# pattern.
_IGNORABLE = (
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0),
    *range(0x180B, 0x1810),
    *range(0xFE00, 0xFE10),
    *range(0xFFF0, 0xFFF9),
    *range(0xE0000, 0xE1000),
)
_UNDRAWN = frozenset(map(chr, _IGNORABLE))
# Number of characters that are checked together.
_PIECE = 1_000
# Longest integer that is a uid, in bits: about 1,000 digits. Longer ones take too long to convert.
_MOST_UID_BITS = 3_320


def is_blank(text: str) -> bool:
    """Whether a text has no visible character."""
    rest = text.strip()  # fast: a query of a megabyte of spaces must not take long
    first = rest[:1]
    if "!" <= first <= "~" or (first.isalnum() and first not in _UNDRAWN):
        return False
    # Sets, because the rest can be a megabyte of format characters.
    pieces = (set(rest[start : start + _PIECE]) for start in range(0, len(rest), _PIECE))
    return all(unicodedata.category(one) in _BLANK_CATEGORIES for piece in pieces for one in piece - _UNDRAWN)


def require_unicode(text: str, kind: str) -> None:
    """Refuse with a ValueError a text that is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {kind} contains half of a surrogate pair, which is not a character; remove it") from None


def require_words(text: str, kind: str = "query") -> str:
    """Refuse with a ValueError a text that is not valid Unicode, or has no visible character."""
    require_unicode(text, kind)
    if is_blank(text):
        raise ValueError(f"the {kind} is empty; send some words")
    return text


def holds_texts(kind: Any) -> bool:
    """Whether a type of Arrow is one of the types of strings, or that of a column of nulls."""
    from pyarrow import types  # an optional package

    if types.is_dictionary(kind):  # pandas stores categories so
        kind = kind.value_type
    tests = types.is_null, types.is_string, types.is_large_string, types.is_string_view
    return any(test(kind) for test in tests)


def integer_as_uid(value: object) -> object:
    """The uid that an integer means: its decimal digits. Other values and longer integers stay unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    number = int(value)
    return str(number) if number.bit_length() <= _MOST_UID_BITS else value


UidText = Annotated[str, BeforeValidator(integer_as_uid, json_schema_input_type=str | int)]
