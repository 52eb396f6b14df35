"""Series over time as small plots in one SVG file."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _COLUMNS, _MARGIN = 420, 150, 2, 36


def svg(seconds: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """One plot a series, each from zero to its greatest value; `seconds` are those of the values."""
    plots = [
        _plot(seconds, values, name, (n % _COLUMNS) * _WIDTH, (n // _COLUMNS) * _HEIGHT)
        for n, (name, values) in enumerate(series.items())
    ]
    size = f'width="{_COLUMNS * _WIDTH}" height="{-(-len(series) // _COLUMNS) * _HEIGHT}"'
    style = "text { font: 12px sans-serif; fill: #333 } path { fill: none; stroke: #2563eb } line { stroke: #ccc }"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(plots)}</svg>\n'


def _plot(seconds: Sequence[float], values: Sequence[float], name: str, left: int, top: int) -> str:
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    last, most = max(seconds) or 1.0, max(values) or 1.0
    points = (
        f"{x / last * width:.1f},{height - y / most * height:.1f}"
        for x, y in zip(seconds, values, strict=True)
    )
    title = f"{name}: {values[-1]:,.2f} at the end, {max(values):,.2f} at most"
    texts = [(0, -8, title), (width - 40, height + 16, f"{last:,.0f} s")]
    shown = "".join(f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in texts)
    axis = f'<line x1="0" y1="{height}" x2="{width}" y2="{height}"/>'
    return f'<g transform="translate({left + _MARGIN} {top + _MARGIN})">{axis}<path d="M{" L".join(points)}"/>{shown}</g>'
