"""Reads the ledger of a load run, and reports any token that was admitted twice, and any bad token that was admitted.

usage: loadtest/run check LEDGER...
       loadtest/run check --self-test     forged histories, and memory that leaks: each fault must be caught

Several ledgers are checked as one history: they must use one tokens file. Exit code 0 only if no fault is found.
"""

import itertools, sys

from harness import ledger, sampler


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    if arguments == ["--self-test"]:
        ledger.self_test()
        sampler.self_test()
        print(f"{len(ledger.FORGED) + 1} forged histories and two leaks: all caught; correct histories pass")
        return 0
    try:
        check = ledger.Check(itertools.chain.from_iterable(ledger.lines(path) for path in arguments))
    except (OSError, ValueError) as error:
        print(f"loadtest/run check: {error}", file=sys.stderr)
        return 1
    print("\n".join(check.statement()))
    return 1 if check.faults else 0

