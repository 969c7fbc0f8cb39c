"""The base of all drawings: a document that is readable on light and on dark, axes, and round values on them."""

import math
from xml.sax.saxutils import escape, quoteattr

LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#57606a", "#9a6700", "#0e7c86", "#bf3989", "#24292f", "#7d5200")
DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#9da7b3", "#d29922", "#39c5cf", "#f778ba", "#e6edf3", "#e3b341")


def colours(of):
    return "".join(f".c{index}{{stroke:{colour};fill:{colour}}}" for index, colour in enumerate(of))


STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.axis{fill:#59636e;font-size:12px}.back{fill:#fff}"
    ".title{font-weight:600;font-size:15px}.grid{stroke:#8c959f;stroke-opacity:.35}"
    f"{colours(LIGHT)}path{{fill:none!important;stroke-width:2}}"
    ".whisker{stroke:#24292f;stroke-width:1.5}"
    ".a{fill:#6e7781}.b{fill:#afb8c1}.own.a{fill:#0969da}.own.b{fill:#6cb0ff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{fill:#9198a1}.back{fill:#0d1117}"
    f"{colours(DARK)}.whisker{{stroke:#e6edf3}}"
    ".a{fill:#8b949e}.b{fill:#545d68}.own.a{fill:#4493f8}.own.b{fill:#1f5fb8}}"
    "text[class^=c]{stroke:none}"
)


def document(width, height, title, about, inner, words=""):
    """`about` is a line below the title; `words` is the text alternative of the drawing."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f"role=\"img\" aria-label={quoteattr(title)}>\n"
    )
    head += f"<desc>{escape(words)}</desc>\n" if words else ""
    head += f'<style>{STYLE}</style>\n<rect class="back" width="{width}" height="{height}"/>\n'
    head += text(16, 26, title, "title") + "\n"
    head += text(16, 46, about, "axis") + "\n" if about else ""
    return head + "\n".join(inner) + "\n</svg>\n"


def place(value):
    """A position, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def text(x, y, content, kind="", anchor=""):
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{place(x)}" y="{place(y)}"{more}>{escape(content)}</text>'


def line(x1, y1, x2, y2, kind="grid", more=""):
    return f'<line x1="{place(x1)}" y1="{place(y1)}" x2="{place(x2)}" y2="{place(y2)}" class="{kind}"{more}/>'


class Axis:
    """Maps values to positions."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value):
        share = (value - self.low) / ((self.high - self.low) or 1)
        return self.start + share * (self.end - self.start)


def number(value):
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def ticks(high):
    """Round values: about five even steps from 0."""
    step = 10.0 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 6)
    return [step * count for count in range(int(high / step + 1e-9) + 1)]
