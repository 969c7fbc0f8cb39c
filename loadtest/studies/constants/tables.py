"""How a constant is read and shown."""

from rig import reading, report as page


def cpu_us(program):
    return reading.cpu(program.pid) * 1e6


def table(report, title, head, rows):
    report.add(f"## {title}", page.table(head, rows))
