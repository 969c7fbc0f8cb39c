"""The result of a run, on the terminal and as result.md."""

from rig.reading import load_average
from rig.report import command, commit, machine, table, version


def of_phases(result):
    rows = []
    for name, phase in sorted(result.phases.items(), key=lambda item: item[1].first):
        answers = ", ".join(f"{answer} {len(waits)}" for answer, waits in sorted(phase.waiting.items()))
        times = [f"{value:.2f}" for value in phase.percentiles()]
        rows.append((name, f"{phase.rate():.1f}", *(times if times[0] != "nan" else "---"), answers))
    return table(("phase", "answers/s", "p50 ms", "p95 ms", "p99 ms", "answers"), rows)


def of_result(result):
    yield f"## {result.name}: {'all thresholds held' if result.held() else 'A THRESHOLD DID NOT HOLD'}"
    yield f"{result.question} {result.minutes:g} min at {result.rate:g}/s on {result.deployment}."
    yield of_phases(result)
    rows = [(held.name, held.found, held.bound, "held" if held.held else "**broken**") for held in result.thresholds]
    yield table(("threshold", "found", "bound", ""), rows)
    if result.table:
        yield table(result.table[0], result.table[1:])
    if result.check:
        yield "`loadtest/run check`:\n\n" + "\n".join(f"    {line}" for line in result.check.statement())
    for note in result.notes:
        yield f"- {note}"


def write(out, results, started):
    """Writes result.md, prints its summary, and returns whether all thresholds held."""
    text = [
        f"# Load by k6, {started:%Y-%m-%d %H:%M} UTC",
        f"Commit {commit()}, {version()}. Machine: {machine()}, load averages at the end {load_average()}. "
        "Everything on it, over loopback: k6, target and Postern share the cores. Times are from the request to the first "
        "byte of the answer, of admitted requests.",
        f"    {command()}",
    ]
    for result in results:
        text += of_result(result)
    (out / "result.md").write_text("\n\n".join(text) + "\n")
    print("\n== Summary")
    for result in results:
        for name, phase in sorted(result.phases.items(), key=lambda item: item[1].first):
            times = "  ".join(f"p{share} {value:7.2f}" for share, value in zip((50, 95, 99), phase.percentiles()))
            answers = ", ".join(f"{answer} {len(waits)}" for answer, waits in sorted(phase.waiting.items()))
            print(f"{result.name + '/' + name:24} {phase.rate():7.1f}/s  {times} ms  {answers}")
        broken = [threshold.name for threshold in result.thresholds if not threshold.held]
        print(f"{result.name:24} " + (f"BROKEN: {'; '.join(broken)}" if broken else
                                      f"all {len(result.thresholds)} thresholds held"))
    print(f"The result is {out / 'result.md'}")
    return all(result.held() for result in results)
