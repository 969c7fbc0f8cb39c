"""A dated file of results: the machine, the commit, the command, then what was measured."""

import datetime, os, platform, re, shlex, subprocess, sys, textwrap
from . import ROOT
from .binaries import POSTERN, program
from .reading import load_average

RESULTS = os.path.join(ROOT, "loadtest/results")
CODE = ("--", "*.rs", "Cargo.lock")


def first_line(*command):
    """The first line of a program's output, or nothing if it cannot be run."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def machine():
    """The cores and the kernel, without the vendor's suffix of the release."""
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
    model = found.group(1) if found else platform.machine()
    return f"{os.cpu_count()} × {model}, Linux {platform.release().split('-')[0]}"


def commit():
    """The last commit that changed code, because the scripts may be newer; POSTERN_COMMIT if another one was built."""
    if named := os.environ.get("POSTERN_COMMIT"):
        return named
    changed = " with changes" if first_line("git", "status", "--porcelain", "--untracked-files=no", *CODE) else ""
    return (first_line("git", "log", "-1", "--format=%h", *CODE) or "unknown") + changed


def version():
    return first_line(POSTERN, "--version")


def command():
    """The command line, from the root of the repository, without the path of the binary."""
    given = ["POSTERN_BINARY=…"] if os.environ.get("POSTERN_BINARY") else []
    return " ".join([*given, shlex.join(["loadtest/run", *sys.orig_argv[2:]])])  # after the interpreter and the script


def priority():
    """The settings by which the measured programs run ahead of other work, if any."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with open("/proc/self/autogroup") as file:  # the kernel weighs these groups first, each a session
            group = int(file.read().split()[-1])
    except (OSError, IndexError):
        group = 0
    set_ones = [f"nice {own}"] * bool(own) + [f"an autogroup of nice {group}"] * bool(group)
    return f"; run with {' in '.join(set_ones)}" if set_ones else ""


def others():
    """The versions of memcached and twemproxy, if installed."""
    versions = [("", first_line(program("memcached") or "", "-V"))]
    versions += [("twemproxy ", first_line(program("nutcracker") or "", "-V").split("-")[-1])]
    return "; ".join(name + version for name, version in versions if version) or "nothing"


class Report:
    """Written to loadtest/results/DATE-NAME.md."""

    def __init__(self, name, title):
        self.name, self.title, self.parts = name, title, []
        self.date = datetime.date.today().isoformat()
        self.load, self.began = load_average(), datetime.datetime.now()

    def add(self, *text):
        """Adds paragraphs, which are wrapped, and tables, lists and headings, which are not; prints them too."""
        for part in text:
            if part[0] not in "#-|! ":
                part = textwrap.fill(" ".join(part.split()), 120, break_long_words=False, break_on_hyphens=False)
            self.parts.append(part)
            print(part + "\n", flush=True)

    def write(self):
        minutes = (datetime.datetime.now() - self.began).total_seconds() / 60
        head = [
            f"# {self.title}, {self.date}",
            "    " + command(),
            "\n".join(
                [
                    f"- Machine: {machine()}",
                    f"- Postern: commit {commit()}, {version()}, {os.environ.get('POSTERN_BUILD', 'release build')}",
                    f"- Beside it: {others()}",
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


def table(header, rows):
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])
