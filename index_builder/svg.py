"""Draw plots as SVG. Text stays text, the legend is below the axes, and equal figures give equal files."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_INCHES = 9
# The files have no metadata, because a date would make every file different.
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def render_svg(draw: Callable[[Figure], None], height: float, legend_columns: int) -> str:
    """Draw a figure as SVG.

    Args:
        draw: Function that draws on the figure. The legend names each label once.
        height: Height in inches.
        legend_columns: Number of columns in the legend.
    """
    from matplotlib import rc_context  # imported here: the import takes a second, and few commands draw plots
    from matplotlib.figure import Figure

    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "recollect"}):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        draw(figure)
        legends = [axes.get_legend_handles_labels() for axes in figure.axes]
        handles = {label: handle for legend in legends for handle, label in zip(*legend, strict=True)}
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=legend_columns,
            fontsize="small",
            frameon=False,
        )
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    return written.getvalue()
