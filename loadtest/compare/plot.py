"""Bar charts as SVG, readable on light and on dark, with the same in words."""

import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 300, 76, 54, 52
BAR, GAP = 16, 14

STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 15px }
.small { font-size: 12px; fill: #57606a }
.back { fill: #ffffff }
.grid { stroke: #d0d7de }
.whisker { stroke: #24292f; stroke-width: 1.5 }
.a { fill: #6e7781 } .b { fill: #afb8c1 } .postern.a { fill: #0969da } .postern.b { fill: #6cb0ff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.small { fill: #9da7b3 }
.back { fill: #0d1117 }
.grid { stroke: #30363d }
.whisker { stroke: #e6edf3 }
.a { fill: #8b949e } .b { fill: #545d68 } .postern.a { fill: #4493f8 } .postern.b { fill: #1f5fb8 }
}
"""


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def steps(most):
    """Round numbers from 0 to at least `most`, four to eight of them."""
    size = 10 ** math.floor(math.log10(most))
    step = next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if most / (size * part) <= 8)
    return [step * index for index in range(math.ceil(most / step) + 1)]


def bars(title, axis, series, rows):
    """A group of horizontal bars for each of `rows`: a label and (value, low, high) for each of `series`, with a
    whisker from low to high. Returns the drawing, and its content in words."""
    marks = steps(max(high for _, points in rows for _, _, high in points))
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    group = BAR * len(series) + GAP
    bottom = TOP + group * len(rows)
    body = [f'<text class="title" x="16" y="24">{escape(title)}</text>']
    for index, name in enumerate(filter(None, series)):
        x = LEFT + index * 90
        body.append(f'<rect class="{"ab"[index]}" x="{x}" y="34" width="12" height="12"/>')
        body.append(f'<rect class="postern {"ab"[index]}" x="{x + 14}" y="34" width="12" height="12"/>')
        body.append(f'<text class="small" x="{x + 32}" y="45">{escape(name)}</text>')
    for mark in marks:
        x = LEFT + mark * scale
        body.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        body.append(f'<text class="small" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{mark:,.10g}</text>')
    body.append(f'<text class="small" x="{LEFT}" y="{bottom + 40}">{escape(axis)}</text>')
    for row, (label, points) in enumerate(rows):
        top = TOP + GAP / 2 + row * group
        middle = top + BAR * len(series) / 2
        body.append(f'<text x="{LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        own = "postern " if label.startswith("Postern") else ""
        for index, (value, low, high) in enumerate(points):
            y = top + index * BAR
            size = f'width="{value * scale:.1f}" height="{BAR - 2}"'
            body.append(f'<rect class="{own}{"ab"[index]}" x="{LEFT}" y="{y + 1:.1f}" {size}/>')
            if high > low:
                body.append(whisker(LEFT + low * scale, LEFT + high * scale, y + BAR / 2))
            x = LEFT + max(value, high) * scale + 6
            body.append(f'<text class="small" x="{x:.1f}" y="{y + BAR / 2 + 4:.1f}">{number(value)}</text>')
    words = in_words(title, axis, series, rows)
    height = bottom + BOTTOM
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-labelledby="title words">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="words">{escape(words)}</desc>\n<style>\n{STYLE}</style>\n'
        f'<rect class="back" width="{WIDTH}" height="{height}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
    return drawing, words


def whisker(low, high, y):
    ends = f"M{low:.1f} {y - 4:.1f}v8M{high:.1f} {y - 4:.1f}v8"
    return f'<path class="whisker" fill="none" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>'


def in_words(title, axis, series, rows):
    said = []
    for label, points in rows:
        values = [f"{name} {number(value)}".strip() for name, (value, _, _) in zip(series, points)]
        said.append(f"{label}: {', '.join(values)}")
    return f"{title}, in {axis}. {'; '.join(said)}."
