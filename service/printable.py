"""Text from outside for the terminal: a control character could change the terminal's state."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape control characters."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
