"""Reads the ledger of a load run, and says whether any token was admitted twice, or anything that is no good token.

usage: loadtest/run check LEDGER...
       loadtest/run check --self-test     forged histories, and memory that leaks: each fault must be caught

Several ledgers are checked as one history: they must be of one tokens file. Exit code 0 only if nothing is wrong.
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
        print(f"{len(ledger.FORGED) + 1} forged histories and two leaks: all caught; what is honest passes")
        return 0
    try:
        check = ledger.Check(itertools.chain.from_iterable(ledger.lines(path) for path in arguments))
    except (OSError, ValueError) as error:
        print(f"loadtest/run check: {error}", file=sys.stderr)
        return 1
    print("\n".join(check.statement()))
    return 1 if check.faults else 0

