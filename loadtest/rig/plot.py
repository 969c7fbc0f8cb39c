"""Curves and bars as SVG, readable on light and on dark: text and lines take the reader's colour scheme."""

import math

STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.axis{fill:#59636e;font-size:12px}"
    ".title{font-weight:600;font-size:15px}.grid{stroke:#8c959f;stroke-opacity:.35}"
    ".c0{stroke:#0969da;fill:#0969da}.c1{stroke:#bc4c00;fill:#bc4c00}.c2{stroke:#1a7f37;fill:#1a7f37}"
    ".c3{stroke:#8250df;fill:#8250df}.slow{stroke:#cf222e;fill:#cf222e}path{fill:none!important;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{fill:#9198a1}"
    ".c0{stroke:#58a6ff;fill:#58a6ff}.c1{stroke:#f0883e;fill:#f0883e}.c2{stroke:#3fb950;fill:#3fb950}"
    ".c3{stroke:#bc8cff;fill:#bc8cff}.slow{stroke:#ff7b72;fill:#ff7b72}}"
    "text.c0,text.c1,text.c2,text.c3{stroke:none}"
)


def document(width, height, title, about, inner):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{title}">\n<style>{STYLE}</style>\n'
        f'<text x="16" y="26" class="title">{title}</text>\n<text x="16" y="46" class="axis">{about}</text>\n'
    )
    return head + "\n".join(inner) + "\n</svg>\n"


class Axis:
    """From values to positions; logarithmic when asked for."""

    def __init__(self, low, high, start, end, logarithmic):
        self.map = math.log10 if logarithmic else float
        self.low, self.high, self.start, self.end = self.map(low), self.map(high), start, end

    def __call__(self, value):
        share = (self.map(value) - self.low) / ((self.high - self.low) or 1)
        return self.start + share * (self.end - self.start)


def number(value):
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def microseconds(value):
    return f"{value / 1e6:g} s" if value >= 1e6 else f"{value / 1e3:g} ms" if value >= 1e3 else f"{value:g} µs"


def ticks(low, high, logarithmic):
    """Round values: powers of ten with 2 and 5 between when the range is short, or about five even steps."""
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
        return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
    step = 10.0 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 6)
    return [step * count for count in range(int(high / step + 1e-9) + 1)]


def curves(path, title, about, x, y, series, x_log=False, y_log=False, show=number):
    """`series` is {name: [(x, y), ...]}, `x` and `y` say what the axes are, with the unit."""
    left, right, top, bottom, width = 90, 690, 88, 388, 960
    xs = [point[0] for points in series.values() for point in points]
    ys = [point[1] for points in series.values() for point in points]
    low, high = (min(ys) / 1.3, max(ys) * 1.3) if y_log else (0, max(ys) * 1.1)
    across = Axis(min(xs), max(xs), left, right, x_log)
    up = Axis(low, high, bottom, top, y_log)
    out = []
    for tick in ticks(low, high, y_log):
        out.append(f'<line x1="{left}" y1="{up(tick):.1f}" x2="{right}" y2="{up(tick):.1f}" class="grid"/>')
        out.append(f'<text x="{left - 8}" y="{up(tick) + 4:.1f}" text-anchor="end" class="axis">{show(tick)}</text>')
    for tick in sorted(set(xs)):
        out.append(f'<line x1="{across(tick):.1f}" y1="{top}" x2="{across(tick):.1f}" y2="{bottom}" class="grid"/>')
        out.append(
            f'<text x="{across(tick):.1f}" y="{bottom + 18}" text-anchor="middle" class="axis">{number(tick)}</text>'
        )
    out.append(f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle" class="axis">{x}</text>')
    out.append(f'<text x="16" y="{top - 14}" class="axis">{y}</text>')
    labels = spaced({name: up(points[-1][1]) for name, points in series.items()})
    for index, (name, points) in enumerate(series.items()):
        steps = " L".join(f"{across(px):.1f} {up(py):.1f}" for px, py in points)
        out.append(f'<path d="M{steps}" class="c{index % 4}"/>')
        out += [f'<circle cx="{across(px):.1f}" cy="{up(py):.1f}" r="4" class="c{index % 4}"/>' for px, py in points]
        out.append(f'<text x="{right + 14}" y="{labels[name] + 4:.1f}" class="c{index % 4}">{name}</text>')
    with open(path, "w") as file:
        file.write(document(width, bottom + 56, title, about, out))


def spaced(heights, least=17):
    """Moves labels apart where curves end close together."""
    placed, floor = {}, -math.inf
    for name, height in sorted(heights.items(), key=lambda pair: pair[1]):
        placed[name] = floor = max(height, floor + least)
    return placed


def bars(path, title, about, x, rows, show=microseconds, slow=math.inf):
    """`rows` is [(name, from, middle, to)]: a bar from the least to the most and a dot, on a logarithmic axis."""
    left, right, top, step, width = 430, 860, 64, 26, 1000
    bottom = top + step * len(rows)
    low = 10.0 ** math.floor(math.log10(min(row[1] for row in rows)))
    high = 10.0 ** math.ceil(math.log10(max(row[3] for row in rows)))
    across, out = Axis(low, high, left, right, True), []
    for tick in ticks(low, high, True):
        at = f"{across(tick):.1f}"
        out.append(f'<line x1="{at}" y1="{top - 6}" x2="{at}" y2="{bottom}" class="grid"/>')
        out.append(f'<text x="{at}" y="{bottom + 20}" text-anchor="middle" class="axis">{show(tick)}</text>')
    for index, (name, least, middle, most) in enumerate(rows):
        y, colour = top + step * (index + 0.5), "slow" if middle >= slow else "c0"
        out.append(f'<text x="{left - 14}" y="{y + 4.5}" text-anchor="end">{name}</text>')
        out.append(
            f'<line x1="{across(least):.1f}" y1="{y}" x2="{across(most):.1f}" y2="{y}" class="{colour}" '
            'stroke-width="4" stroke-linecap="round" stroke-opacity=".45"/>'
        )
        out.append(f'<circle cx="{across(middle):.1f}" cy="{y}" r="5" class="{colour}"/>')
        figure = f"{middle / 1e3:.1f} ms" if middle >= 1e3 else f"{middle:.0f} µs"
        out.append(f'<text x="{across(most) + 12:.1f}" y="{y + 4}" class="axis">{figure}</text>')
    out.append(f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle" class="axis">{x}</text>')
    with open(path, "w") as file:
        file.write(document(width, bottom + 52, title, about, out))
