"""Sentences of a docstring, without signatures, tables, examples and code."""

from __future__ import annotations

import inspect
import re

_SHORTEST, _LONGEST = 12, 300  # length of a sentence in characters
_FEWEST_WORDS = 3
_LEAST_PROSE = 0.8  # smallest share of letters and spaces in the characters of a sentence

_SIGNATURE = re.compile(r"[\w.]+ ?\(.*\)\s*([-=]+>.*|=.*|:)?$|[\w.]+ ?\([^)]*$")
_TABLE_ROW = re.compile(r"[-*+•|>] |\d+[.)] |[:@.]+\w+|>>>|\w+ *(--?|:)\s|\w+ {2,}|.*\w {3,}\S")
_UNDERLINE = re.compile(r"([=~^*#+-])\1{2,}$")
_MARKUP = re.compile(r":[\w:]+:(?=`)|`+|\*\*|(?<!\w)[*](?=\w)|(?<=\w)[*](?!\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)\s+(?=[\"'(]?[A-Z])")
_WORD = re.compile(r"(?<!\S)[\"'(]?[A-Za-z]{2,}[.,;:!?)\"']*(?!\S)")


def sentences(docstring: str) -> list[str]:
    """The sentences of a docstring, in order. Runs of whitespace become one space."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return [
        sentence
        for block in blocks
        for sentence in _SENTENCE_END.split(_paragraph(block.splitlines()))
        if _is_prose(sentence)
    ]


def _paragraph(lines: list[str]) -> str:
    """The text at the start of a block, after any signature. Indented blocks are code or tables and give no text."""
    while lines and _SIGNATURE.match(lines[0]):
        lines = lines[1:]
    prose: list[str] = []
    for line in lines:
        if _TABLE_ROW.match(line.lstrip()) or (line.startswith((" ", "\t")) and not prose):
            break
        if _UNDERLINE.match(line):
            prose.clear()  # an underlined heading is not a sentence
            continue
        prose.append(line)
        if line.rstrip().endswith(":"):  # the rest of the block is a table or code
            break
    return " ".join(_MARKUP.sub("", " ".join(prose)).split())


def _is_prose(sentence: str) -> bool:
    if not _SHORTEST <= len(sentence) <= _LONGEST or sentence.endswith(":"):
        return False
    prose = sum(character.isalpha() or character == " " for character in sentence)
    return len(_WORD.findall(sentence)) >= _FEWEST_WORDS and prose >= _LEAST_PROSE * len(sentence)
