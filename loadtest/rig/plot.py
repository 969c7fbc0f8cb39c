"""Bars and samples over time, as SVG."""

from .svg import DARK, Axis, document, line, number, place, text, ticks


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


def rounded(value):
    """A figure of three digits or fewer after a bar."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bars(title, axis, series, rows):
    """A group of horizontal bars for each of `rows`: a label, whether it is Postern, and (value, low, high) for each of
    `series` (two at most), with a whisker from low to high. Returns the drawing, and its content in words."""
    width, left, right, top, thick, gap = 860, 300, 76, 54, 16, 14
    most = max(high for _, _, points in rows for _, _, high in points)
    marks = ticks(most)
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
        out += [*upward(up, ticks(most), left, right)]
        out += across(minutes, ticks(longest / 60), top, bottom, lambda mark: f"{mark:g} min")
        for index, (name, points) in enumerate(lines.items()):
            kind = f"c{index % len(DARK)}"
            if points:
                out.append(f'<path d="{steps(points, seconds, up)}" class="{kind}"/>')
            out.append(text(right + 14, top + 14 + 17 * index, name, kind))
        top = bottom + gap
    return document(width, top - gap + 30, title, about, out)
