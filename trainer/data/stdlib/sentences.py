"""The prose of a docstring, sentence by sentence: no signatures, tables, examples or code."""

from __future__ import annotations

import inspect
import re

_SHORTEST, _LONGEST = 12, 300  # characters
_FEWEST_WORDS = 3
_LEAST_PROSE = 0.8  # of the characters: letters and spaces

_SIGNATURE = re.compile(r"[\w.]+ ?\(.*\)\s*([-=]+>.*|=.*|:)?$|[\w.]+ ?\([^)]*$")
_TABLE_ROW = re.compile(r"[-*+•|>] |\d+[.)] |[:@.]+\w+|>>>|\w+ *(--?|:)\s|\w+ {2,}|.*\w {3,}\S")
_UNDERLINE = re.compile(r"([=~^*#+-])\1{2,}$")
_MARKUP = re.compile(r":[\w:]+:(?=`)|`+|\*\*|(?<!\w)[*](?=\w)|(?<=\w)[*](?!\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)\s+(?=[\"'(]?[A-Z])")
_WORD = re.compile(r"(?<!\S)[\"'(]?[A-Za-z]{2,}[.,;:!?)\"']*(?!\S)")


def sentences(docstring: str) -> list[str]:
    """Split the prose of a docstring into sentences, in order, whitespace collapsed."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return [
        sentence
        for block in blocks
        for sentence in _SENTENCE_END.split(_paragraph(block.splitlines()))
        if _is_prose(sentence)
    ]


def _paragraph(lines: list[str]) -> str:
    """The prose that a block of lines opens with, below a signature; empty if indented, as code and tables are."""
    while lines and _SIGNATURE.match(lines[0]):
        lines = lines[1:]
    prose: list[str] = []
    for line in lines:
        if _TABLE_ROW.match(line.lstrip()) or (line.startswith((" ", "\t")) and not prose):
            break
        if _UNDERLINE.match(line):
            prose.clear()  # the heading that it underlines
            continue
        prose.append(line)
        if line.rstrip().endswith(":"):  # what follows is a table or code
            break
    return " ".join(_MARKUP.sub("", " ".join(prose)).split())


def _is_prose(sentence: str) -> bool:
    if not _SHORTEST <= len(sentence) <= _LONGEST or sentence.endswith(":"):
        return False
    prose = sum(character.isalpha() or character == " " for character in sentence)
    return len(_WORD.findall(sentence)) >= _FEWEST_WORDS and prose >= _LEAST_PROSE * len(sentence)
