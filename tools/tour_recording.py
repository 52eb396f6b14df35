"""Records `lakehouse tour --auto` as an animation: `python -m tools.tour_recording` writes docs/images/tour.svg.

Long waits are shortened; the seconds that the tour prints are those that it took.
"""

import re
import sys
import tempfile
import time
from copy import copy
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme

from assets.tour.command import play
from lakehouse.stopping import Stop

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "tour.svg"
WIDTH, ROWS = 118, 26
CHARACTER, LINE, MARGIN = 7.9, 17, 14  # pixels
LONGEST_WAIT, AT_LEAST, AT_THE_END = 0.6, 0.05, 8.0  # seconds
TO_READ = 2.2  # seconds after what a step says first, and what it has verified


class Recorder(Console):
    """A console that keeps what is printed, as HTML, with the time."""

    def __init__(self) -> None:
        super().__init__(width=WIDTH, record=True, file=StringIO(), highlight=False)
        self.prints: list[tuple[float, str]] = []

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        html = self.export_html(theme=_theme(), code_format="{code}", inline_styles=True)
        self.prints.append((time.monotonic(), html))
        sys.stdout.write(self.file.getvalue())  # type: ignore[attr-defined]
        sys.stdout.flush()
        self.file.truncate(0)
        self.file.seek(0)


def _theme() -> TerminalTheme:
    """Returns the theme of rich's own pictures, with a background that leaves dim text well to be read."""
    theme = copy(SVG_EXPORT_THEME)
    theme.background_color = ColorTriplet(105, 110, 116)
    return theme


def drawn(prints: list[tuple[float, str]]) -> str:
    """Returns the picture: a window of rows that moves down a column of lines, and a cover over lines still to come."""
    lines, ends, pauses = [], [], []
    for (at, html), (after, _) in zip(prints, [*prints[1:], prints[-1]], strict=True):
        lines += html.rstrip("\n").split("\n")
        ends.append(len(lines))
        prose = html[:1].isalpha() or html.startswith("`") or "verified:" in html
        pauses.append(TO_READ if prose else max(min(after - at, LONGEST_WAIT), AT_LEAST))
    starts = [0.0, *accumulate(pauses)]
    total = starts[-1] + AT_THE_END
    top, cover = [], []
    for start, end in zip(starts, ends, strict=False):
        share = f"{100 * start / total:.2f}%"
        top.append(f"{share}{{transform:translateY({-LINE * max(end - ROWS, 0)}px)}}")
        cover.append(f"{share}{{transform:translateY({LINE * min(end, ROWS)}px)}}")
    width, height = round(WIDTH * CHARACTER + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    rows = "\n".join(
        f'<text y="{LINE * n + 13}">{_tspans(line)}</text>'
        for n, line in enumerate(lines)
        if line.strip()
    )
    last = LINE * max(len(lines) - ROWS, 0)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>lakehouse tour --auto</title>
<style>
text{{font:13px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#c5c8c6;white-space:pre}}
#top,#cover{{animation:{total:.1f}s step-end infinite}}
#top{{animation-name:top;transform:translateY(-{last}px)}}
#cover{{animation-name:cover;transform:translateY({ROWS * LINE}px)}}
@keyframes top{{{"".join(top)}}}
@keyframes cover{{{"".join(cover)}}}
@media (prefers-reduced-motion:reduce){{#top,#cover{{animation:none}}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#1b1f23"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{ROWS * LINE}">
<g id="top">
{rows}
</g>
<rect id="cover" width="100%" height="{ROWS * LINE}" fill="#1b1f23"/>
</svg>
</svg>
"""


def _tspans(line: str) -> str:
    """Returns a line of HTML as text of SVG: CSS calls the colour of a text `fill` there."""
    line = re.sub(
        r'<span style="([^"]*)">', lambda found: f'<tspan style="{_css(found[1])}">', line
    )
    return line.replace("</span>", "</tspan>").replace("&#x27;", "'").replace("&quot;", '"')


def _css(style: str) -> str:
    rules = (rule.strip() for rule in style.split(";"))
    return ";".join(
        rule.replace("color: ", "fill:").replace(": ", ":")
        for rule in rules
        if rule.startswith(("color", "font-weight"))
    )


def main() -> int:
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        exit_code = play(recorder, Path(folder) / "lakehouse-tour", Stop(), auto=True, keep=False)
        prints = [(at, html.replace(folder, "~")) for at, html in recorder.prints]
    if exit_code == 0:
        IMAGE.write_text(drawn(prints))
        print(f"{IMAGE}: {IMAGE.stat().st_size:,} bytes")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
