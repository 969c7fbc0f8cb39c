"""A dated file of results: the machine, the commit, the command, then what was measured."""

import datetime, os, platform, re, shlex, statistics, subprocess, sys, textwrap
from .programs import POSTERN, ROOT
from .reading import load_average

RESULTS = os.path.join(ROOT, "loadtest/results")


def said(*command):
    """The first line of what a program prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    return done.stdout.strip().split("\n")[0]


def priority():
    """What was set so that the measured programs run ahead of other work, if anything was."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return f"; run with nice {own} in an autogroup of its own" if own else ""


def processor():
    with open("/proc/cpuinfo") as file:
        return re.search(r"model name\s*: (.*)", file.read()).group(1)


class Report:
    """Written to loadtest/results/DATE-NAME.md; `picture` gives the path of an SVG beside it."""

    def __init__(self, name, title):
        self.name, self.title, self.parts = name, title, []
        self.date = datetime.date.today().isoformat()
        self.load, self.began = load_average(), datetime.datetime.now()

    def add(self, *text):
        """Paragraphs, which are wrapped, and tables, lists and headings, which are not; printed at once, too."""
        for part in text:
            if part[0] not in "#-|! ":
                part = textwrap.fill(" ".join(part.split()), 120, break_long_words=False, break_on_hyphens=False)
            self.parts.append(part)
            print(part + "\n", flush=True)

    def picture(self, what, about):
        """The path for an SVG, and its mention in the report."""
        file = f"{self.date}-{self.name}{'-' + what if what else ''}.svg"
        self.add(f"![{about}]({file})")
        return os.path.join(RESULTS, file)

    def write(self):
        # The last commit that touched code: the scripts around it may be newer.
        code = said("git", "log", "-1", "--format=%h", "--", "*.rs", "Cargo.lock")
        arguments = [os.path.relpath(sys.argv[0], ROOT)] + sys.argv[1:]
        release = platform.release().split("-")[0]
        minutes = (datetime.datetime.now() - self.began).total_seconds() / 60
        head = [
            f"# {self.title}, {self.date}",
            "    " + shlex.join(arguments),
            "\n".join(
                [
                    f"- Machine: {os.cpu_count()} × {processor()}, Linux {release}",
                    f"- Postern: commit {code}, {said(POSTERN, '--version')}, release build",
                    f"- Beside it: {said('memcached', '-V')}; twemproxy {said('nutcracker', '-V').split('-')[-1]}",
                    f"- Load average (1, 5, 15 minutes) before {self.load}, after {load_average()}",
                    f"- Took {minutes:.1f} minutes{priority()}",
                ]
            ),
        ]
        os.makedirs(RESULTS, exist_ok=True)
        path = os.path.join(RESULTS, f"{self.date}-{self.name}.md")
        with open(path, "w") as file:
            file.write("\n\n".join(head + self.parts) + "\n")
        print("written:", os.path.relpath(path, ROOT))


# A sentence of several reports.
LEAST = """Other work on the machine only ever adds to a figure (caches, the hypervisor), so the least of many short
turns comes nearest to what a check costs by itself. Ratios are of the least, then of the medians."""


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def rounds(name, values, digits=1):
    """All rounds of one figure, as a line of a list."""
    return f"- {name}: " + ", ".join(f"{value:,.{digits}f}" for value in values)


def beside(values, base):
    """The ratio of the least, and that of the medians."""
    return f"{min(values) / min(base):.2f}, {statistics.median(values) / statistics.median(base):.2f}"


def middle(values, digits=1):
    """Median, and in parentheses the least and the most."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
