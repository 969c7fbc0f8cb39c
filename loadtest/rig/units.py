"""Figures with their units."""

import math


def time(seconds):
    """A duration of three digits with its unit."""
    if seconds is None or math.isnan(seconds):
        return "–"
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms") if seconds < 1 else (seconds, "s")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def size(count):
    """Bytes with their unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
