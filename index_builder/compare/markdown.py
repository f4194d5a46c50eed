"""The comparison in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from index_builder.compare.report import Comparison
from index_builder.compare.tables import Cell, Table


def markdown(comparison: Comparison, drawn: dict[str, str]) -> str:
    """The whole report; `drawn` are its plots, which lie beside it."""
    return "\n".join(_lines(comparison, drawn))


def markdown_table(table: Table) -> str:
    """A table with its best cells in bold, in columns as wide as their texts."""
    texts = [table.headings, *([_text(cell) for cell in row] for row in table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*texts, strict=True)]
    lines = [_row(line, widths) for line in texts]
    lines.insert(1, _row([":--", *("-" * (width - 1) + ":" for width in widths[1:])], widths, "-"))
    return "\n".join(lines)


def _row(texts: list[str], widths: list[int], filling: str = " ") -> str:
    """The first cell is a heading, and stands to the left."""
    first, *others = zip(texts, widths, strict=True)
    cells = [first[0].ljust(first[1], filling), *(text.rjust(width) for text, width in others)]
    return f"| {' | '.join(cells)} |"


def _text(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.best else cell.text


def _lines(comparison: Comparison, drawn: dict[str, str]) -> Iterator[str]:
    yield f"# {comparison.title}\n"
    for section in comparison.sections(drawn):
        yield f"## {section.heading}\n"
        if section.table is not None:
            yield f"{section.table.caption}.\n\n{markdown_table(section.table)}\n"
        if section.plot is not None:
            yield f"![{section.heading}](plots/{section.plot}.svg)\n"
        yield f"{section.text}\n"
    yield "## How it was made\n"
    yield from (f"- {name}: {told}" for name, told in comparison.made.items())
    yield ""
