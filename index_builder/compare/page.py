"""The comparison as one HTML file that needs nothing else: no script, no font, no image from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from index_builder.compare.report import Comparison, Section
from index_builder.compare.tables import Cell, Table

# The browser's own colours, so that light and dark are as its reader likes them.
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


def page(comparison: Comparison, drawn: dict[str, str]) -> str:
    """The whole report; `drawn` are its plots, which it holds."""
    return "\n".join(_lines(comparison, drawn)) + "\n"


def _lines(comparison: Comparison, drawn: dict[str, str]) -> Iterator[str]:
    title = escape(comparison.title)
    yield f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>"
    for section in comparison.sections(drawn):
        yield from _section(section, drawn)
    yield "<section>\n<h2>How it was made</h2>\n<dl>"
    for name, told in comparison.made.items():
        yield f"<dt>{escape(name)}</dt>\n<dd>{escape(told)}</dd>"
    yield "</dl>\n</section>\n</main>\n</body>\n</html>"


def _section(section: Section, drawn: dict[str, str]) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(section.heading)}</h2>"
    if section.table is not None:
        yield from _table(section.table)
    if section.plot is not None:
        yield f"<figure>{_inline(drawn[section.plot], section.plot, section.heading)}</figure>"
    yield f"<p>{escape(section.text)}</p>\n</section>"


def _table(table: Table) -> Iterator[str]:
    yield f'<div class="wide">\n<table>\n<caption>{escape(table.caption)}</caption>\n<thead>\n<tr>'
    yield "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    yield "</tr>\n</thead>\n<tbody>"
    for first, *others in table.rows:
        yield f'<tr><th scope="row">{escape(first.text)}</th>{"".join(map(_cell, others))}</tr>'
    yield "</tbody>\n</table>\n</div>"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<td><strong>{text}</strong></td>" if cell.best else f"<td>{text}</td>"


def _inline(svg: str, name: str, label: str) -> str:
    """An SVG file as a part of the page: in its colours, with ids that no other plot has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("#000000", "currentColor").replace("fill: #ffffff", "fill: none")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).rstrip()
