"""An HTML page of sections with charts and tables.

The page needs no other file: no script, no font and no image. All text is escaped. The browser refuses every request
that a mistake in the page could cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #6b7280; --rule: #e5e7eb; --paper: #ffffff; --card: #f9fafb;
  --strong: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e7eb; --faint: #9ca3af; --rule: #374151; --paper: #111827;
  --card: #1a2332; --strong: #7ab0ff; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 0.25rem; }
p { color: var(--faint); margin: 0.25rem 0 1rem; max-width: 46rem; white-space: pre-line; }
dl { display: grid; gap: 0.75rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); margin: 0; }
dt { color: var(--faint); font-size: 0.85rem; }
dd { font-weight: 600; margin: 0; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
figure { background: var(--card); border: 1px solid var(--rule); border-radius: 0.6rem; margin: 0; padding: 0.75rem;
  min-width: 0; }
figure svg { display: block; height: auto; margin: 0 auto; max-width: 40rem; width: 100%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin: 0.5rem 0;
  overflow-wrap: normal; }
caption { font-weight: 600; padding-bottom: 0.4rem; text-align: left; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.3rem 0.6rem; text-align: right; vertical-align: top;
  white-space: nowrap; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
th:first-child, .text { text-align: left; }
tbody th { font-weight: 500; }
.text { max-width: 32rem; min-width: 14rem; white-space: pre-line; overflow-wrap: anywhere; }
details caption { clip-path: inset(50%); height: 1px; overflow: hidden; position: absolute; width: 1px; }
strong { color: var(--strong); }
details { margin: 0.4rem 0; }
summary { cursor: pointer; color: var(--strong); }
figure summary { font-size: 0.85rem; }
section > details { border: 1px solid var(--rule); border-radius: 0.6rem; padding: 0.5rem 0.75rem; }
@media (max-width: 44rem) {
  figure .chart text { font-size: 16px; }
  figure .chart .title { font-size: 20px; }
  .prose, .prose caption, .prose tbody, .prose tr, .prose th, .prose td { display: block; }
  .prose thead { display: none; }
  .prose tr { border-bottom: 1px solid var(--rule); padding: 0.6rem 0; }
  .prose th, .prose td { border: 0; min-width: 0; padding: 0.1rem 0; text-align: left; white-space: pre-line; }
  .prose td::before { color: var(--faint); content: attr(data-heading) ": "; }
  .prose tbody th { font-weight: 600; }
}
:focus-visible { outline: 2px solid var(--strong); outline-offset: 2px; }
"""


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table. The first cell of each row is the heading of that row.

    Attributes:
        caption: Its title.
        headings: The headings of the columns.
        rows: The cells.
        texts: Numbers of the columns that hold text, which is aligned left and wrapped.
    """

    caption: str
    headings: list[str]
    rows: list[list[Cell]]
    texts: Collection[int] = ()


@dataclass(frozen=True)
class Chart:
    """A chart as SVG, and a table with its figures."""

    svg: str
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        heading: Its heading.
        text: An explanation.
        charts: Charts; the table of each is folded below it.
        tables: Tables that are shown.
        folded: Tables of which only the captions are shown until the reader opens them.
    """

    heading: str
    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


def html_page(title: str, facts: dict[str, str], sections: Sequence[Section]) -> str:
    """Write a page: its title, its facts, and its sections."""
    return "\n".join(_lines(title, facts, sections)) + "\n"


def _lines(title: str, facts: dict[str, str], sections: Sequence[Section]) -> Iterator[str]:
    yield f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>"
    yield from _facts(facts)
    for section in sections:
        yield from _section(section)
    yield "</main>\n</body>\n</html>"


def _facts(facts: dict[str, str]) -> Iterator[str]:
    if facts:
        items = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
        yield f"<dl>\n{items}\n</dl>"


def _section(section: Section) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(section.heading)}</h2>\n<p>{escape(section.text)}</p>"
    for table in section.tables:
        yield from _table(table)
    if section.charts:
        yield '<div class="charts">'
        for chart in section.charts:
            yield f"<figure>\n{chart.svg.rstrip()}"
            if chart.table is not None:
                yield from _folded(chart.table, f"Table: {chart.table.caption}")
            yield "</figure>"
        yield "</div>"
    for table in section.folded:
        yield from _folded(table, table.caption)
    yield "</section>"


def _folded(table: Table, summary: str) -> Iterator[str]:
    yield f"<details>\n<summary>{escape(summary)}</summary>"
    yield from _table(table)
    yield "</details>"


def _table(table: Table) -> Iterator[str]:
    """A table. On a narrow screen it scrolls alone, also by keyboard; a table with text shows each row as a block.

    The roles keep a row of such blocks a row of a table for screen readers.
    """
    prose = ' class="prose" role="table"' if table.texts else ""
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.caption)}">\n<table{prose}>'
    yield f"<caption>{escape(table.caption)}</caption>\n<thead>\n<tr>"
    yield "".join(f'<th scope="col"{_kind(table, at)}>{escape(name)}</th>' for at, name in enumerate(table.headings))
    yield "</tr>\n</thead>\n<tbody>"
    for first, *others in table.rows:
        cells = "".join(
            f'<td role="cell"{_kind(table, at)} data-heading="{escape(table.headings[at])}">{_text(cell)}</td>'
            for at, cell in enumerate(others, start=1)
        )
        yield f'<tr role="row"><th scope="row" role="rowheader"{_kind(table, 0)}>{_text(first)}</th>{cells}</tr>'
    yield "</tbody>\n</table>\n</div>"


def _kind(table: Table, column: int) -> str:
    return ' class="text"' if column in table.texts else ""


def _text(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<strong>{text}</strong>" if cell.best else text
