"""Puts load on Postern with k6, and fails unless every threshold held. Without addresses it starts a deployment.

usage: loadtest/run [SCENARIO...] [OPTIONS]        loadtest/README.md has a table of the scenarios

It reports its progress, prints a summary, and writes to DIR a result (result.md) and a folder for each scenario, with
k6's HTML report, its metrics, and the ledger of all answers. Exit code 0: all thresholds held. 1: the run failed. 2:
usage. 99: a threshold did not hold.

POSTERN_BINARY           the postern to run and to mint with (default target/release/postern)
POSTERN_COMMIT           the commit it was built from, if that is not this checkout's
POSTERN_ISSUER_API_KEY   the account's key, if the issuer requires one
POSTERN_K6               a k6 binary; without it scripts/tools/k6 finds or builds one
"""

import argparse, datetime, os, signal, sys, tempfile
from pathlib import Path

from harness import k6, report
from harness.scenarios import QUICK, SCENARIOS
from harness.session import Session
from rig import ROOT, Failed
from rig.binaries import postern, program


def arguments(studies):
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("scenario", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} [all but soak]")
    option("--gateway", action="append", metavar="URL", help="a gateway that runs already; may be given again")
    option("--admin", action="append", metavar="URL", help="the admin address of a gateway, in the order of --gateway")
    option("--issuer", metavar="URL")
    option("--agent", metavar="URL")
    option("--fleet-env", metavar="FILE", help="the file that deploy/local/fleet wrote, instead of addresses")
    option("--target", metavar="HOST:PORT", help="answers and closes [one that is started here, on loopback]")
    option("--holding-target", metavar="HOST:PORT", help="sends bytes for some seconds and closes [likewise]")
    option("--minutes", type=float, help="how long each scenario runs")
    option("--rate", type=float, help="presentations a second")
    option("--tokens", type=Path, metavar="FILE", help="minted before; they must be fresh [minted by the run]")
    option("--sample", type=float, default=15, metavar="SECONDS", help="between two samples of a soak [15]")
    option("--out", type=Path, metavar="DIR", help="a new folder [target/loadtest/DATE-TIME]")
    option("--quick", action="store_true", help=f"a minute in all, for CI: {', '.join(QUICK)}; latency is not judged")
    found = parser.parse_args()
    unknown = [name for name in found.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(
            f"no scenario is called {', '.join(unknown)}; there are {', '.join(SCENARIOS)}, and the studies"
            f" {', '.join(studies)}, which run alone")
    if found.fleet_env and found.gateway:
        parser.error("--fleet-env names the gateways already")
    return found


def quick(options):
    """The scenarios of --quick that this machine has the programs for."""
    names = list(QUICK)
    router = os.environ.get("POSTERN_MCROUTER") or program("nutcracker") or program("mcrouter")
    if not (options.fleet_env or (program("memcached") and router)):
        print("outage: skipped, because it needs memcached and twemproxy (apt-get install memcached nutcracker)")
        names.remove("outage")
    return names


def main(studies):
    options = arguments(studies)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # everything that was started is ended on the way out
    started = datetime.datetime.now(datetime.timezone.utc)
    out = (options.out or Path(ROOT) / "target/loadtest" / started.strftime("%Y-%m-%d-%H%M%S")).resolve()
    names = options.scenario or (quick(options) if options.quick else [name for name in SCENARIOS if name != "soak"])
    try:
        postern()
        out.mkdir(parents=True)
        results = []
        with tempfile.TemporaryDirectory() as home:
            session = Session(options, k6.find(), out, Path(home))
            try:
                for name in names:
                    results.append(session.run(name))
            finally:
                session.stop()
                if results:  # also when a later scenario failed
                    held = report.write(out, results, started)
    except (Failed, OSError, ValueError) as error:
        print(f"loadtest/run: {error}", file=sys.stderr)
        return 1
    return 0 if held else 99

