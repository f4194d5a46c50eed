"""Compares an answer with the part of it that a user relies on."""

from __future__ import annotations

import math
from typing import Any

TOLERANCE = 1e-6
# In an expected answer, these texts stand for any value of a kind. VERSION stands for the version that is served.
_KINDS: dict[str, tuple[type, ...]] = {"<text>": (str,), "<number>": (int, float), "<list>": (list,), "<map>": (dict,)}


def differences(found: Any, expected: Any, where: str = "answer") -> list[str]:
    """List the places where an answer differs from the expected one.

    Fields may be added, so an object may have more fields than expected. A list has the same length. Numbers are equal
    to 1e-6. A text that begins and ends with `...` must be contained.
    """
    if isinstance(expected, str) and expected in _KINDS:
        return [] if isinstance(found, _KINDS[expected]) else [f"{where}: expected {expected}, found {found!r}"]
    if isinstance(expected, str) and expected.startswith("...") and expected.endswith("..."):
        return [] if expected.strip(".") in str(found) else [f"{where}: expected {expected}, found {found!r}"]
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{where}.{name}: missing" for name in expected if name not in found]
        return missing + [
            each
            for name, value in expected.items()
            if name in found
            for each in differences(found[name], value, f"{where}.{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return [f"{where}: expected {len(expected)} elements, found {len(found)}: {found}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [each for place, pair in pairs for each in differences(*pair, f"{where}[{place}]")]
    if isinstance(expected, float) and isinstance(found, int | float):
        near = math.isclose(found, expected, rel_tol=0, abs_tol=TOLERANCE)
        return [] if near else [f"{where}: expected {expected}, found {found}"]
    same = type(found) is type(expected) and found == expected
    return [] if same else [f"{where}: expected {expected!r}, found {found!r}"]


def filled(template: Any, values: dict[str, str]) -> Any:
    """Replace names such as VERSION in all texts of a request or of an answer."""
    if isinstance(template, dict):
        return {name: filled(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if isinstance(template, str):
        for name, value in values.items():
            template = template.replace(name, value)
    return template
