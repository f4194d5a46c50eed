"""Charts as SVG: lines and bars.

A chart is readable alone and inside a page. It has the colours of a light or a dark screen, as the reader's browser is
set. Its text stays text, and equal charts give equal files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from recollect.trainer.report.scale import Axis, Number, Scale

_WIDTH, _HEIGHT = 560, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 22, 34, 58
_LEGEND_LINE = 22
_COLOURS, _REFERENCE = 10, "-reference"
_STYLE = """
.chart { --ink: #1f2937; --faint: #6b7280; --rule: #e5e7eb; --c0: #2563eb; --c1: #d9480f; --c2: #0f8a5f; --c3: #9333ea;
  --c4: #b45309; --c5: #0e7490; --c6: #be185d; --c7: #4d7c0f; --c8: #475569; --c9: #b91c1c; }
@media (prefers-color-scheme: dark) { .chart { --ink: #e5e7eb; --faint: #9ca3af; --rule: #374151; --c0: #7ab0ff;
  --c1: #ff9a6b; --c2: #4fd1a1; --c3: #c79bff; --c4: #f5b942; --c5: #5fd0e6; --c6: #f58bbd; --c7: #a8d85a;
  --c8: #a9b4c4; --c9: #ff8a8a; } }
.chart text { font: 13px system-ui, sans-serif; fill: var(--faint); }
.chart .title { font-weight: 600; font-size: 14px; fill: var(--ink); }
.chart .legend { fill: var(--ink); }
.chart .rule { stroke: var(--rule); }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .s-reference { stroke: var(--faint); stroke-dasharray: 6 4; } .chart .f-reference { fill: var(--faint); }
.chart .band { stroke: none; fill-opacity: 0.15; }
.chart .again { fill-opacity: 0.5; stroke-dasharray: 2 3; }
"""
_COLOUR_RULES = "".join(
    f".chart .s{number} {{ stroke: var(--c{number}); }} .chart .f{number} {{ fill: var(--c{number}); }}\n"
    for number in range(_COLOURS)
)


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: Its name in the legend; lines with the same name share an entry and a colour.
        points: x and y of each point.
        line: Whether the points are joined.
        marked: Whether each point has a marker.
        reference: Whether the line is grey and dashed, for comparison with the others.
        band: The ends of an interval around each y.
    """

    name: str
    points: Sequence[tuple[Number, Number]]
    line: bool = True
    marked: bool = True
    reference: bool = False
    band: Sequence[tuple[Number, Number]] = ()


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Draw lines. Points without a place on a logarithmic axis are left out."""
    drawn = [_on_axes(each, x, y) for each in lines]
    across = Scale.of(x, (at for each in drawn for at, _ in each.points), _LEFT, _WIDTH - _RIGHT)
    heights = [value for each in drawn for value in (*(at for _, at in each.points), *_ends(each))]
    up = Scale.of(y, heights, _HEIGHT - _BOTTOM, _TOP)
    colours = _colours(each.name for each in drawn)
    colours |= {each.name: _REFERENCE for each in drawn if each.reference}
    marks = [mark for each in drawn for mark in _line(each, colours[each.name], across, up)]
    ticks = [(across(tick), f"{tick:,.6g}") for tick in across.ticks()]
    return _chart(title, [*_axes(x.title, y, up, ticks), *marks], colours)


def bar_chart(
    title: str, groups: Sequence[str], bars: Mapping[str, Sequence[Number | None]], x_title: str, y: Axis
) -> str:
    """Draw groups of bars: a bar for each name in each group. A value of None has no bar."""
    values = [value for each in bars.values() for value in each if value is not None]
    up = Scale.of(y, [0.0, *values], _HEIGHT - _BOTTOM, _TOP)
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(groups))
    width = 0.8 * room / max(1, len(bars))
    colours = _colours(bars)
    marks = []
    for number, (name, heights) in enumerate(bars.items()):
        for group, height in enumerate(heights):
            if height is not None:
                left, top = _LEFT + room * (group + 0.1) + number * width, up(height)
                marks.append(
                    f'<rect class="f{colours[name]}" x="{left:.1f}" y="{top:.1f}" width="{0.94 * width:.1f}" '
                    f'height="{max(0.0, up.start - top):.1f}" rx="1.5">'
                    f"<title>{escape(f'{name}, {groups[group]}: {height:,.4g}')}</title></rect>"
                )
    ticks = [(_LEFT + room * (group + 0.5), name) for group, name in enumerate(groups)]
    return _chart(title, [*_axes(x_title, y, up, ticks), *marks], colours)


def _colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of each name. The eleventh has that of the first, dotted or paler."""
    return {
        name: f"{number % _COLOURS}{' again' if number >= _COLOURS else ''}"
        for number, name in enumerate(dict.fromkeys(names))
    }


def _on_axes(line: Line, x: Axis, y: Axis) -> Line:
    kept = [
        row for row, (at, value) in enumerate(line.points) if not (x.log and at <= 0) and not (y.log and value <= 0)
    ]
    band = [line.band[row] for row in kept] if line.band else ()
    return Line(line.name, [line.points[row] for row in kept], line.line, line.marked, line.reference, band)


def _ends(line: Line) -> Iterator[Number]:
    for low, high in line.band:
        yield from (low, high)


def _line(line: Line, colour: str, across: Scale, up: Scale) -> Iterator[str]:
    if not line.points:
        return
    places = [(across(x), up(y)) for x, y in line.points]
    if line.band:
        ends = [(at, up(low), up(high)) for (at, _), (low, high) in zip(places, line.band, strict=True)]
        outline = [*((at, high) for at, _, high in ends), *((at, low) for at, low, _ in reversed(ends))]
        yield f'<polygon class="band f{colour}" points="{_path(outline)}"/>'
    if line.line:
        yield f'<polyline class="line s{colour}" points="{_path(places)}"/>'
    if line.marked:
        radius = 3.5 if line.line else 5  # points alone must be visible on the lines of other points
        for (at, height), (x, y) in zip(places, line.points, strict=True):
            place = f'cx="{at:.1f}" cy="{height:.1f}" r="{radius}"'
            text = escape(f"{line.name}: {y:,.4g} at {x:,.4g}")
            yield f'<circle class="f{colour}" {place}><title>{text}</title></circle>'


def _path(places: Sequence[tuple[Number, Number]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _axes(x_title: str, y: Axis, up: Scale, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    """The grid, the numbers at it, and the titles of both axes."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for tick in up.ticks():
        height = up(tick)
        yield f'<line class="rule" x1="{_LEFT}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}"/>'
        yield f'<text x="{_LEFT - 7}" y="{height + 4:.1f}" text-anchor="end">{tick:,.6g}</text>'
    for at, text in ticks:
        yield f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>'
    middle = (_TOP + bottom) / 2
    yield f'<text x="{(_LEFT + right) / 2}" y="{bottom + 38}" text-anchor="middle">{escape(x_title)}</text>'
    yield f'<text transform="translate(15 {middle}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text>'


def _chart(title: str, marks: Sequence[str], colours: dict[str, str]) -> str:
    legend, lines = _legend(colours, title)
    height = _HEIGHT + lines * _LEGEND_LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {_WIDTH} {height}">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}{_COLOUR_RULES}</style>",
            f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>',
            *marks,
            *legend,
            "</svg>\n",
        ]
    )


def _legend(colours: dict[str, str], title: str) -> tuple[list[str], int]:
    """The legend, and its number of lines. A single entry that repeats the title of the chart is left out."""
    if list(colours) == [title]:
        return [], 0
    entries, left, line = [], float(_LEFT), 0
    for name, colour in colours.items():
        # An estimate: the widths of the reader's font are unknown. A narrow screen has the largest font.
        width = 24 + sum(12 if letter.isupper() or letter in "@%" else 9.2 for letter in name)
        if left > _LEFT and left + width > _WIDTH - _RIGHT:
            left, line = float(_LEFT), line + 1
        height = _HEIGHT + line * _LEGEND_LINE + 8
        entries.append(
            f'<rect class="f{colour}" x="{left:.1f}" y="{height - 9}" width="12" height="9" rx="2"/>'
            f'<text class="legend" x="{left + 17:.1f}" y="{height}">{escape(name)}</text>'
        )
        left += width + 6
    return entries, line + 1 if colours else 0
