"""Attacks the daemons, beside honest clients, and writes a table.

usage: loadtest/run abuse [NAME...] [--honest N]     all of them, or those that are named

Each attack runs against processes that it starts, on loopback, beside 1,000 honest requests. The table says how many of
these were served and what became of the others, the CPU that the attacked process spent for each refused request, and
its memory for each connection that the attacker holds. Nothing here is judged: a defect is a figure.
"""

import importlib, sys
from rig.programs import many_files
from rig.report import Report, table
from rig.units import size, time
from abuse import honest
from abuse.stage import Stage

HEADER = ("attack", "honest requests served", "CPU a refusal", "memory a connection", "remark")
ABOUT = """Honest clients come at a fixed rate, whatever became of those before, and are patient for ten seconds. Memory
is the growth of VmRSS for each further descriptor, so a connection that has one to a target, too, counts twice. CPU is
that of all threads of the attacked process."""
NAMES = (
    "headers",
    "silent",
    "garbage",
    "descriptors",
    "accounts",
    "greedy",
    "states",
    "hostile",
    "crash",
    "forwarding",
    "names",
    "small",
)


def main(names):
    if set(names) & {"-h", "--help"}:
        return print(__doc__.strip(), "\n\nnames:", " ".join(NAMES))
    if "--honest" in names:
        at = names.index("--honest")
        honest.COUNT = int(names[at + 1])
        del names[at : at + 2]
    if unknown := set(names) - set(NAMES):
        sys.exit(f"no such attack: {' '.join(sorted(unknown))}; there are {' '.join(NAMES)}")
    many_files()
    report, rows = Report("abuse", "Attacks"), []
    for name in names or NAMES:
        with Stage() as stage:
            for attack, outcome, cpu, memory, remark in importlib.import_module(f"abuse.{name}").scenarios(stage):
                served = honest.text(outcome) if outcome is not None else "–"
                row = (attack, served, time(cpu) if cpu else "–", size(memory) if memory else "–", remark or "")
                rows.append(row)
                print("| " + " | ".join(row) + " |", flush=True)
    if not names:
        report.add(ABOUT, table(HEADER, rows))
        report.write()


if __name__ == "__main__":
    main(sys.argv[1:])
