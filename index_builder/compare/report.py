"""The report of a comparison, written as Markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.index_builder.compare.comparison import Comparison
from recollect.trainer.report.page import Cell, Chart, Section, Table, html_page

_PROVENANCE_HEADING = "How to repeat this comparison"


def markdown_report(comparison: Comparison, plots: dict[str, Chart]) -> str:
    """Write the report as Markdown, with links to its plots in `plots/`."""
    return "\n".join(_markdown_lines(comparison, plots))


def markdown_table(table: Table) -> str:
    """Write a table with aligned columns; the best cells are bold."""
    texts = [table.headings, *([_markdown_cell(cell) for cell in row] for row in table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*texts, strict=True)]
    lines = [_markdown_row(line, widths) for line in texts]
    rule = [":--", *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, _markdown_row(rule, widths, padding="-"))
    return "\n".join(lines)


def html_report(comparison: Comparison, plots: dict[str, Chart]) -> str:
    """Write the report as HTML. The page contains its plots, and needs no other file."""
    first, second = comparison.best
    facts = {f"best by {comparison.metric}": first, "second best": second, "methods": f"{len(comparison.results)}"}
    rows = [[Cell(name), Cell(fact)] for name, fact in comparison.provenance.items()]
    made = Table("Settings, machine and software", ["fact", "value"], rows, texts=(1,))
    provenance = Section(
        _PROVENANCE_HEADING, "Files and folders are given by their names, without paths.", tables=[made]
    )
    return html_page(comparison.title, facts, [*comparison.sections(plots), provenance])


def _markdown_lines(comparison: Comparison, plots: dict[str, Chart]) -> Iterator[str]:
    names = {id(chart): name for name, chart in plots.items()}
    yield f"# {comparison.title}\n"
    for section in comparison.sections(plots):
        yield f"## {section.heading}\n"
        for table in section.tables:
            yield f"{table.caption}.\n\n{markdown_table(table)}\n"
        for chart in section.charts:
            yield f"![{section.heading}](plots/{names[id(chart)]}.svg)\n"
        yield f"{section.text}\n"
    yield f"## {_PROVENANCE_HEADING}\n"
    yield from (f"- {name}: {fact}" for name, fact in comparison.provenance.items())
    yield ""


def _markdown_row(texts: list[str], widths: list[int], padding: str = " ") -> str:
    """Align the first cell of a row to the left, and all other cells to the right."""
    first, *others = zip(texts, widths, strict=True)
    cells = [first[0].ljust(first[1], padding), *(text.rjust(width) for text, width in others)]
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.best else cell.text
