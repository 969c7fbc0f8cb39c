"""The cost of a tunnel in Postern and in other proxies, side by side on this machine, with one driver.

usage: loadtest/run compare [--over plain|tls|udp] [--rounds N] [--tunnels N] [--only NAME,NAME] [--workers N] [--out DIR]
                            [--quick]

Starts each proxy that is installed, gives all of them equal work in interleaved rounds, and writes DATE-compare.md and
its drawings into DIR (loadtest/results). --quick is a run of seconds that shows whether everything works; it writes
only into --out. The gateway is POSTERN_BINARY (target/release/postern), the driver POSTERN_LOADTEST
(postern-loadtest in target/release/, or beside the gateway).
loadtest/README.md describes what is compared, how, and what it does not show. Python's standard library is enough.
"""

import argparse, datetime, os, platform, sys, tempfile, types

import measure, proxies, report
from proxies.postern import Issuer
from rig import binaries, certificates, reading
from rig.net import free_port
from rig.programs import many_files, stop_on_sigterm
from rig.report import RESULTS, command
from running import Running, log, mint


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--over", choices=proxies.ALL, default="plain", help="TCP; TLS with HTTP/1.1 and HTTP/2; or UDP over both")
    parser.add_argument("--rounds", type=int, default=8, help="interleaved rounds; 0 measures idle memory alone")
    parser.add_argument("--tunnels", type=int, default=3000, help="short tunnels in each round")
    parser.add_argument("--alone", type=int, default=500, help="short tunnels of a single client in each round")
    parser.add_argument("--clients", type=int, default=16, help="clients at once")
    parser.add_argument("--mebibytes", type=int, default=1024, help="relayed in each direction in each round")
    parser.add_argument("--datagrams", type=int, default=200_000, help="of each kind in each round")
    parser.add_argument("--bulk-tunnels", type=int, default=4, help="tunnels that share them")
    parser.add_argument("--idle", type=int, default=1000, help="idle tunnels whose memory is measured")
    parser.add_argument("--idle-rounds", type=int, default=3, help="fresh starts for that")
    parser.add_argument("--traced", type=int, default=500, help="tunnels under strace; 0 for none")
    parser.add_argument("--workers", type=int, default=1, help="threads of a proxy that can be so limited")
    parser.add_argument("--only", default="", help="names of proxies, separated by commas")
    parser.add_argument("--out", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="one small round")
    given = parser.parse_args()
    if given.idle_rounds < 1:
        parser.error("--idle-rounds has to be 1 or more")
    given.warm_up = 200
    if given.quick:
        given.rounds, given.tunnels, given.alone, given.mebibytes = 1, 200, 20, 64
        given.idle, given.idle_rounds, given.traced, given.warm_up, given.datagrams = 50, 1, 0, 20, 5000
    return given


def setup_of(given, work):
    """The settings that every part needs."""
    settings = types.SimpleNamespace(**vars(given), work=work, driver=binaries.driver(), target_port=free_port())
    settings.lineup = proxies.ALL[given.over]
    is_tls = any(kind.tls for kind in settings.lineup.kinds)
    settings.certificate = certificates.make(os.path.join(work, "tls")) if is_tls else None
    return settings


def choose(setup):
    """The proxies to compare, and those that cannot be, with the reason."""
    names = [name for name in setup.only.split(",") if name]
    known = {proxy.name: proxy for proxy in setup.lineup.kinds}
    if unknown := set(names) - set(known):
        sys.exit(f"no proxy is called {', '.join(sorted(unknown))}: {', '.join(known)}")
    wanted = [proxy for name, proxy in known.items() if not names or name in names]
    return [p for p in wanted if p.found()], [p for p in wanted if not p.found()]


def timings(setup, started, result):
    """Interleaved rounds; each begins with another proxy, so that none always follows the same."""
    for proxy in started:
        measure.warm_up(setup, proxy)
    before = reading.machine()
    ours = account(started)
    for number in range(setup.rounds):
        log(f"round {number + 1} of {setup.rounds}, load {os.getloadavg()[0]:.2f}")
        first = number % len(started)
        for proxy in started[first:] + started[:first]:
            result.rounds[proxy.name].append(measure.one_round(setup, proxy))
    after = reading.machine()
    ours_now = account(started)
    result.busy, result.stolen = after.busy - before.busy, after.stolen - before.stolen
    result.others = result.busy - (ours_now - ours)


def account(started):
    """CPU time of all processes of this comparison."""
    pids = [pid for proxy in started for of in proxy.pids().values() for pid in of]
    return sum(map(reading.cpu, pids)) + reading.own_cpu()


def compare(setup, result):
    with Running(setup) as running:
        if any(kind.program == "postern" for kind in result.kinds):
            issuer = running.start(Issuer)
            setup.issuer = f"http://127.0.0.1:{issuer.port}"
        started = [running.start(kind) for kind in result.kinds]
        for proxy in started:
            result.configurations[proxy.name] = report.without_paths(proxy, setup)
        timed = setup.warm_up + setup.rounds * (setup.tunnels + setup.alone + len(measure.DATAGRAMS) * setup.bulk_tunnels) + setup.traced
        for gateway in (proxy for proxy in started if proxy.program == "postern"):
            mint(setup, gateway, timed)
        timings(setup, started, result)
        if setup.rounds and setup.traced and binaries.program("strace"):
            for proxy in started:
                log(f"counting the system calls of {proxy.name}")
                result.system_calls[proxy.name] = measure.system_calls(setup, proxy)
        running.stop(*started)
        for number in range(setup.idle_rounds):
            for kind in result.kinds:
                log(f"idle tunnels, start {number + 1} of {setup.idle_rounds}: {kind.name}")
                proxy = running.start(kind)
                if proxy.program == "postern":
                    mint(setup, proxy, setup.warm_up + setup.idle)
                result.idle[kind.name].append(measure.idle_memory(setup, proxy))
                running.stop(proxy)


def main():
    given = arguments()
    stop_on_sigterm()
    many_files()  # an idle tunnel takes two descriptors of a process
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)  # Squid and Apache give up root's rights
        setup = setup_of(given, work)
        kinds, missing = choose(setup)
        if not kinds:
            sys.exit("nothing to compare is installed")
        result = report.Result(kinds, missing, setup)
        result.command, result.date = command(), datetime.date.today().isoformat()
        result.load_before = reading.load_average()
        compare(setup, result)
        result.load_after = reading.load_average()
        text = result.write(given.out or (None if given.quick else RESULTS))
    print(text)


if __name__ == "__main__":
    if platform.system() != "Linux":
        sys.exit("loadtest/run compare reads /proc: it needs Linux")
    main()
