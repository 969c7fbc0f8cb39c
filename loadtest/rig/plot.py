"""Curves, ranges, bars and samples over time, as SVG."""

import math
from .svg import DARK, Axis, document, line, microseconds, number, place, spaced, text, ticks


def save(path, drawing):
    with open(path, "w") as file:
        file.write(drawing)


def upward(axis, marks, left, right, show=number):
    """Horizontal lines with their values."""
    for mark in marks:
        yield line(left, axis(mark), right, axis(mark))
        yield text(left - 8, axis(mark) + 4, show(mark), "axis", "end")


def across(axis, marks, top, bottom, show=number):
    """Vertical ones."""
    for mark in marks:
        yield line(axis(mark), top, axis(mark), bottom)
        yield text(axis(mark), bottom + 18, show(mark), "axis", "middle")


def steps(points, x, y):
    return "M" + " L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in points)


def curves(path, title, about, x, y, series, x_log=False, y_log=False, show=number):
    """`series` is {name: [(x, y), ...]}, `x` and `y` are the axes' titles, with the unit."""
    left, right, top, bottom, width = 90, 690, 88, 388, 960
    xs = [point[0] for points in series.values() for point in points]
    ys = [point[1] for points in series.values() for point in points]
    low, high = (min(ys) / 1.3, max(ys) * 1.3) if y_log else (0, max(ys) * 1.1)
    wide = Axis(min(xs), max(xs), left, right, x_log)
    up = Axis(low, high, bottom, top, y_log)
    out = [*upward(up, ticks(low, high, y_log), left, right, show), *across(wide, sorted(set(xs)), top, bottom)]
    out += [text((left + right) / 2, bottom + 40, x, "axis", "middle"), text(16, top - 14, y, "axis")]
    labels = spaced({name: up(points[-1][1]) for name, points in series.items()})
    for index, (name, points) in enumerate(series.items()):
        kind = f"c{index % 4}"
        out.append(f'<path d="{steps(points, wide, up)}" class="{kind}"/>')
        out += [f'<circle cx="{wide(px):.1f}" cy="{up(py):.1f}" r="4" class="{kind}"/>' for px, py in points]
        out.append(text(right + 14, labels[name] + 4, name, kind))
    save(path, document(width, bottom + 56, title, about, out))


def ranges(path, title, about, x, rows, slow=math.inf):
    """`rows` is [(name, from, middle, to)] in µs: a bar from the least to the most and a dot, logarithmic."""
    left, right, top, step, width = 430, 860, 64, 26, 1000
    bottom = top + step * len(rows)
    low = 10.0 ** math.floor(math.log10(min(row[1] for row in rows)))
    high = 10.0 ** math.ceil(math.log10(max(row[3] for row in rows)))
    wide = Axis(low, high, left, right, True)
    out = [*across(wide, ticks(low, high, True), top - 6, bottom, microseconds)]
    for index, (name, least, middle, most) in enumerate(rows):
        y, kind = top + step * (index + 0.5), "slow" if middle >= slow else "c0"
        out.append(text(left - 14, y + 4.5, name, anchor="end"))
        thick = ' stroke-width="4" stroke-linecap="round" stroke-opacity=".45"'
        out.append(line(wide(least), y, wide(most), y, kind, thick))
        out.append(f'<circle cx="{wide(middle):.1f}" cy="{y}" r="5" class="{kind}"/>')
        figure = f"{middle / 1e3:.1f} ms" if middle >= 1e3 else f"{middle:.0f} µs"
        out.append(text(wide(most) + 12, y + 4, figure, "axis"))
    out.append(text((left + right) / 2, bottom + 40, x, "axis", "middle"))
    save(path, document(width, bottom + 52, title, about, out))


def rounded(value):
    """A figure of three digits or fewer after a bar."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bars(title, axis, series, rows):
    """A group of horizontal bars for each of `rows`: a label, whether it is Postern, and (value, low, high) for each of
    `series` (two at most), with a whisker from low to high. Returns the drawing, and its content in words."""
    width, left, right, top, thick, gap = 860, 300, 76, 54, 16, 14
    most = max(high for _, _, points in rows for _, _, high in points)
    marks = ticks(0, most)
    if marks[-1] < most:
        marks.append(marks[-1] + marks[1])
    wide, group = Axis(0, marks[-1], left, width - right), thick * len(series) + gap
    bottom, out = top + group * len(rows), []
    for index, name in enumerate(filter(None, series)):
        x, kind = left + index * 90, "ab"[index]
        out.append(f'<rect class="{kind}" x="{x}" y="34" width="12" height="12"/>')
        out.append(f'<rect class="own {kind}" x="{x + 14}" y="34" width="12" height="12"/>')
        out.append(text(x + 32, 45, name, "axis"))
    out += across(wide, marks, top, bottom, lambda mark: f"{mark:,.10g}")
    out.append(text(left, bottom + 40, axis, "axis"))
    for row, (label, own, points) in enumerate(rows):
        first = top + gap / 2 + row * group
        out.append(text(left - 10, first + thick * len(series) / 2 + 4, label, anchor="end"))
        for index, (value, low, high) in enumerate(points):
            y, kind = first + index * thick, ("own " if own else "") + "ab"[index]
            size = f'width="{wide(value) - left:.1f}" height="{thick - 2}"'
            out.append(f'<rect class="{kind}" x="{left}" y="{place(y + 1)}" {size}/>')
            if high > low:
                out.append(whisker(wide(low), wide(high), y + thick / 2))
            out.append(text(wide(max(value, high)) + 6, y + thick / 2 + 4, rounded(value), "axis"))
    words = in_words(title, axis, series, rows)
    return document(width, bottom + 52, title, "", out, words), words


def whisker(low, high, y):
    ends = f"M{low:.1f} {y - 4:.1f}v8M{high:.1f} {y - 4:.1f}v8"
    return f'<path class="whisker" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>'


def in_words(title, axis, series, rows):
    parts = []
    for label, _, points in rows:
        values = [f"{name} {rounded(value)}".strip() for name, (value, _, _) in zip(series, points)]
        parts.append(f"{label}: {', '.join(values)}")
    return f"{title}, in {axis}. {'; '.join(parts)}."


def samples(title, about, longest, panels):
    """One below the other, `panels` of [(what and its unit, {name: [(seconds, value), ...]})]; `longest` in seconds."""
    width, left, right, height, gap = 1000, 80, 800, 200, 64
    minutes = Axis(0, longest / 60, left, right)
    seconds, out, top = Axis(0, longest, left, right), [], 90
    for panel, lines in panels:
        bottom = top + height
        most = max((value for points in lines.values() for _, value in points), default=0) * 1.1 or 1
        up = Axis(0, most, bottom, top)
        out.append(text(left, top - 12, panel))
        out += [*upward(up, ticks(0, most), left, right)]
        out += across(minutes, ticks(0, longest / 60), top, bottom, lambda mark: f"{mark:g} min")
        for index, (name, points) in enumerate(lines.items()):
            kind = f"c{index % len(DARK)}"
            if points:
                out.append(f'<path d="{steps(points, seconds, up)}" class="{kind}"/>')
            out.append(text(right + 14, top + 14 + 17 * index, name, kind))
        top = bottom + gap
    return document(width, top - gap + 30, title, about, out)
