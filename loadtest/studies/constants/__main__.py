"""The constants of the capacity model (docs/operate/capacity.md), measured on this machine.

    loadtest/run constants [--rounds 3] [--tunnels 2000] [--idle 5000] [--records 4000000]

Needs memcached, nutcracker (twemproxy) and tshark with the right to capture on lo. Writes
loadtest/results/DATE-constants.md. Runs the programs that POSTERN_BINARY and POSTERN_LOADTEST (those of target/release)
name, on loopback. CPU is that of each process, so other work on the machine blurs it through caches and hyperthreads
only. mcrouter is not measured: its figures stay unknown.
"""

import argparse

from gateway import tunnels
from rig.binaries import driver, needed
from rig.programs import Programs, many_files
from rig.report import Report
from store import commands, records


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 3), ("tunnels", 2000), ("idle", 5000), ("records", 4_000_000)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    given = arguments.parse_args()
    driver(), needed("nutcracker"), needed("tshark")  # better now than at the end
    many_files()  # a tunnel takes two descriptors of the gateway
    report = Report("constants", "The constants of the capacity model")
    with Programs() as programs:
        records(report, programs, given.records)
        commands(report, programs, given.rounds)
        tunnels(report, programs, given)
    report.write()


if __name__ == "__main__":
    main()
