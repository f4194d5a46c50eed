"""The report of a comparison, written as Markdown and as one HTML file.

The HTML file needs no other file: no script, no font and no image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from index_builder.compare.comparison import Comparison, Section
from index_builder.compare.tables import Cell, Table

_PROVENANCE_HEADING = "How to repeat this comparison"
# Colours come from the browser, so the page is light or dark as the reader's browser is set.
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.5rem; }
th, td { padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }
th:first-child { text-align: left; }
thead th { border-bottom: 2px solid #8888; vertical-align: bottom; }
figure { margin: 1rem 0; }
figure svg { height: auto; max-width: 100%; }
figure svg text { fill: currentColor; }
dt { font-weight: 600; }
dd { margin: 0 0 0.5rem; overflow-wrap: anywhere; }
"""


def markdown_report(comparison: Comparison, plots: dict[str, str]) -> str:
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


def html_report(comparison: Comparison, plots: dict[str, str]) -> str:
    """Write the report as HTML. The page contains its plots."""
    return "\n".join(_html_lines(comparison, plots)) + "\n"


def _markdown_lines(comparison: Comparison, plots: dict[str, str]) -> Iterator[str]:
    yield f"# {comparison.title}\n"
    for section in comparison.sections(plots):
        yield f"## {section.heading}\n"
        if section.table is not None:
            yield f"{section.table.caption}.\n\n{markdown_table(section.table)}\n"
        if section.plot is not None:
            yield f"![{section.heading}](plots/{section.plot}.svg)\n"
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


def _html_lines(comparison: Comparison, plots: dict[str, str]) -> Iterator[str]:
    title = escape(comparison.title)
    yield f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>"
    for section in comparison.sections(plots):
        yield from _html_section(section, plots)
    yield f"<section>\n<h2>{_PROVENANCE_HEADING}</h2>\n<dl>"
    for name, fact in comparison.provenance.items():
        yield f"<dt>{escape(name)}</dt>\n<dd>{escape(fact)}</dd>"
    yield "</dl>\n</section>\n</main>\n</body>\n</html>"


def _html_section(section: Section, plots: dict[str, str]) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(section.heading)}</h2>"
    if section.table is not None:
        yield from _html_table(section.table)
    if section.plot is not None:
        yield f"<figure>{_embedded_svg(plots[section.plot], section.plot, section.heading)}</figure>"
    yield f"<p>{escape(section.text)}</p>\n</section>"


def _html_table(table: Table) -> Iterator[str]:
    yield f'<div class="wide">\n<table>\n<caption>{escape(table.caption)}</caption>\n<thead>\n<tr>'
    yield "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    yield "</tr>\n</thead>\n<tbody>"
    for first, *others in table.rows:
        yield f'<tr><th scope="row">{escape(first.text)}</th>{"".join(map(_html_cell, others))}</tr>'
    yield "</tbody>\n</table>\n</div>"


def _html_cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<td><strong>{text}</strong></td>" if cell.best else f"<td>{text}</td>"


def _embedded_svg(svg: str, name: str, label: str) -> str:
    """Prepare an SVG file for the page: use the page's colours, and prefix its ids, which must differ between plots."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("#000000", "currentColor").replace("fill: #ffffff", "fill: none")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).rstrip()
