"""A bar chart of ratios on a logarithmic axis, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

BAR, LABELS, PLOT, TOP = 14, 230, 520, 46
COLOURS = ("#3b6fb6", "#d9822b", "#4a9c5d", "#a14fa0", "#7a7a7a", "#b8433f")
FONT = "font-family='system-ui, sans-serif' font-size='11'"


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten just below and above all values, with 1 inside."""
    low = min([1.0, *values])
    high = max([1.0, *values])
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def place(value: float, first: int, last: int) -> float:
    """Where a value lies on the axis, in pixels from the left of the plot."""
    return PLOT * (math.log10(value) - first) / (last - first)


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    """One filled rectangle."""
    return f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{height}' fill='{colour}'/>"


def ratio_plot(title: str, bars: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """One group of bars per case, one colour per baseline, all from the line at 1."""
    names = list(dict.fromkeys(name for _, ratios in bars for name in ratios))
    colour = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    first, last = decades([value for _, ratios in bars for value in ratios.values()])
    parts, y = [], TOP
    one = LABELS + place(1, first, last)
    for case, ratios in bars:
        parts.append(f"<text x='{LABELS - 8}' y='{y + BAR - 3}' text-anchor='end'>{escape(case)}</text>")
        for name, value in ratios.items():
            x = LABELS + place(value, first, last)
            left, width = min(x, one), max(abs(x - one), 1)
            parts.append(rectangle(left, y + 2, width, BAR - 4, colour[name]))
            parts.append(f"<text x='{max(x, one) + 4:.1f}' y='{y + BAR - 3}'>{value:.2g}</text>")
            y += BAR
        y += 4
    for power in range(first, last + 1):
        x, text = LABELS + place(10.0**power, first, last), f"{10.0**power:g}x"
        stroke = "#444" if power == 0 else "#ccc"
        parts.append(f"<line x1='{x}' x2='{x}' y1='{TOP - 2}' y2='{y}' stroke='{stroke}'/>")
        parts.append(f"<text x='{x}' y='{y + 12}' text-anchor='middle'>{text}</text>")
    legend, x = [], LABELS
    for name in names:
        legend.append(rectangle(x, 26, 10, 10, colour[name]))
        legend.append(f"<text x='{x + 14}' y='35'>{escape(name)}</text>")
        x += 30 + 7 * len(name)
    size = f"width='{LABELS + PLOT + 60}' height='{y + 24}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>"
    paper = "<rect width='100%' height='100%' fill='white'/>"
    name = f"<text x='8' y='16' font-weight='bold'>{escape(title)}</text>"
    return "\n".join([head, paper, name, *legend, *parts, "</svg>"]) + "\n"
