"""Plots as SVG: text that reads as text, a legend below, and the same bytes whenever the same is drawn."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nothing of when and by what.
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def svg(draw: Callable[[Figure], None], height: float, columns: int) -> str:
    """Draw a figure.

    Args:
        draw: Draws on it; what has a label comes into the legend, once.
        height: In inches; it is 9 wide.
        columns: Of the legend.
    """
    from matplotlib import rc_context  # plots are rare, and take a second to load
    from matplotlib.figure import Figure

    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "recollect"}):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(figure)
        legends = [axes.get_legend_handles_labels() for axes in figure.axes]
        handles = {label: handle for legend in legends for handle, label in zip(*legend, strict=True)}
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
        )
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    return written.getvalue()
