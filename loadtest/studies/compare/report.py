"""The results, as a page of Markdown with drawings, the configurations and every round's numbers beside it."""

import json, os, statistics
import xml.etree.ElementTree as ElementTree
from measure import DATAGRAMS, STREAMS
from rig import plot
from rig.binaries import program
from rig.report import commit, machine, first_line, table as lines


def summary(values):
    """Median, minimum and the quartiles of a few rounds."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "min": min(values), "low": low, "high": high}


def table(head, rows):
    return lines(head, rows) + "\n"


def without_paths(proxy, setup):
    """The files a proxy was started with and its command, without the temporary folder."""
    files = proxy.files()
    named = lambda words: " ".join([os.path.basename(words[0]), *words[1:]])
    commands = [f"# {named(words)}" for words in [*proxy.beside().values(), proxy.command()]]
    text = "\n".join(commands) + "\n" + files[proxy.configuration]
    for path, name in ((proxy.folder, "FOLDER"), (setup.work, "WORK")):
        text = text.replace(path, name)
    return proxy.configuration, text


def is_ours(title):
    return title.startswith("Postern")


def number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


class Result:
    def __init__(self, kinds, missing, setup):
        self.kinds, self.missing, self.setup, self.lineup = kinds, missing, setup, setup.lineup
        self.rounds = {kind.name: [] for kind in kinds}
        self.idle = {kind.name: [] for kind in kinds}
        self.system_calls, self.configurations = {}, {}

    # Queries of the numbers.

    def of(self, name, field):
        return [numbers[field] for numbers in self.rounds[name] + self.idle[name] if field in numbers]

    def median(self, name, field):
        return statistics.median(self.of(name, field))

    def with_beside(self, name):
        """CPU for a tunnel including the program beside the proxy: a memcached."""
        return [numbers["cpu_us"] + numbers["beside_us"] for numbers in self.rounds[name]]

    def has_beside(self, name):
        return any(self.of(name, "beside_us"))

    def ratio(self, median, field, to):
        return f"{median / self.median(to, field):.2f}" if to in self.rounds else ""

    # The page.

    def write(self, folder):
        """Returns the page; writes it and what belongs to it where a folder is given."""
        drawings = self.drawings()
        beside = f"{self.date}-compare{self.lineup.suffix}{'' if self.setup.rounds else '-idle'}"
        page = self.page(beside, drawings)
        if folder is None:
            return page
        os.makedirs(os.path.join(folder, beside), exist_ok=True)
        files = {f"{beside}.md": page}
        files |= {f"{beside}/{name}.svg": text for name, (text, _) in drawings.items()}
        for name, (file, text) in self.configurations.items():
            end = os.path.splitext(file)[1]
            files[f"{beside}/{name}{end}"] = text
        numbers = {"rounds": self.rounds, "idle": self.idle, "system_calls": self.system_calls}
        files[f"{beside}/numbers.json"] = json.dumps(numbers, indent=1) + "\n"
        for name, text in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        return page

    def page(self, beside, drawings):
        image = lambda name: f"![{drawings[name][1]}]({beside}/{name}.svg)\n" if name in drawings else ""
        parts = [
            f"# {self.lineup.title}, {self.date}\n",
            "`loadtest/README.md` describes how this is measured and what it does not show.\n",
            f"    {self.command}\n",
            self.conditions(),
        ]
        parts += self.cost_parts(image) if self.setup.rounds else []
        shared = f", those on HTTP/2 {STREAMS} to a connection" if any(kind.http2 for kind in self.kinds) else ""
        parts += [
            "## Memory of an idle tunnel\n",
            f"Growth of the proxy's own processes by {self.setup.idle} idle tunnels{shared}, from `smaps_rollup` of a proxy "
            f"just\nstarted; medians of {self.setup.idle_rounds} starts. Own memory is what is no page of a file. "
            "The sockets' memory is the kernel's,\nand is not in it.\n",
            self.memory_table(),
            image("memory"),
        ]
        parts += self.time_parts(image) if self.setup.rounds else []
        if self.system_calls:
            parts += [
                "## System calls for a tunnel\n",
                f"Of the proxy's own processes, counted by `strace -f -c` in a run of {self.setup.traced} tunnels by "
                f"itself: a figure that a busy\nmachine disturbs little.\n",
                self.system_call_table(),
            ]
        parts += ["## All rounds\n", self.all_rounds()]
        parts += [f"`{beside}/numbers.json` has every number of every round.\n"]
        return "\n".join(parts)

    def cost_parts(self, image):
        is_udp = any(kind.udp for kind in self.kinds)
        gib = (
            "in datagrams of 1,200 bytes"
            if is_udp
            else f"relayed by {self.setup.bulk_tunnels} tunnels at once, {self.setup.mebibytes} MiB each way and round"
        )
        return [
            "## CPU for a tunnel\n",
            f"{self.lineup.about}: µs of CPU of all the proxy's processes, {self.setup.tunnels}\n"
            f"tunnels a round of {self.setup.clients} clients, {self.setup.rounds} rounds.\n",
            self.cpu_table(),
            image("cpu-per-tunnel"),
            *(self.datagram_parts() if is_udp else []),
            "## CPU for a GiB\n",
            f"Seconds of CPU for a GiB {gib}; medians.\n",
            self.bulk_table(),
            image("cpu-per-gib"),
        ]

    def time_parts(self, image):
        return [
            "## Rate, and time by the client's clock\n",
            f"Medians of the rounds, {self.setup.clients} clients on the cores that the proxy uses, too. Answered: "
            "from the client's first packet to\nthe 200. Echoed: to the byte that came back from the target. "
            "A relay answers nothing.\n",
            self.latency_table(""),
            image("latency"),
            "The same with one client, so that nothing waits for other clients:\n",
            self.latency_table("alone_"),
        ]

    def conditions(self):
        rows = [
            ["machine", machine()],
            ["load before, after", f"{self.load_before}, {self.load_after}"],
            [
                "CPU time of others",
                f"{self.others:.1f} s of {self.busy:.1f} s in the rounds were not of this comparison; "
                f"{self.stolen:.1f} s were stolen by the hypervisor",
            ],
            ["commit", commit()],
            ["workers", f"{self.setup.workers} for each proxy that can be so limited"],
        ]
        rows += [[kind.title, kind.version()] for kind in self.kinds]
        if any(self.has_beside(kind.name) for kind in self.kinds):
            rows.append(["memcached", f"{first_line(program('memcached'), '-V')}, one thread"])
        rows += [[kind.title, f"left out: {kind.program} is not here ({kind.install})"] for kind in self.missing]
        rows += list(self.lineup.cannot.items())
        return table(["", ""], rows)

    def cpu_rows(self):
        """Title and rounds of each line; one with a memcached has two, the second with memcached's own CPU."""
        for kind in self.kinds:
            yield kind.title, self.of(kind.name, "cpu_us")
            if self.has_beside(kind.name):
                yield kind.together, self.with_beside(kind.name)

    def cpu_table(self):
        rows, beside = [], {self.lineup.floor: self.lineup.floor_title, self.lineup.peer: self.lineup.peer_title}
        for title, values in self.cpu_rows():
            s = summary(values)
            ratios = [self.ratio(s["median"], "cpu_us", to) for to in beside]
            low_to_high = f"{number(s['low'])} to {number(s['high'])}"
            rows.append([title, number(s["median"]), number(s["min"]), low_to_high, *ratios])
        return table(["", "median, µs", "minimum", "middle half", *(f"× {title}" for title in beside.values())], rows)

    def datagram_parts(self):
        return [
            "## CPU for a datagram\n",
            f"{self.setup.datagrams:,} of each kind and round, by {self.setup.bulk_tunnels} tunnels at once in bursts of 32; those "
            "alone one by\none, an eighth as many, each asked for by a datagram of five bytes. µs for each one that arrived; medians.\n",
            self.datagram_table(),
        ]

    def datagram_table(self):
        rows = []
        for kind in self.kinds:
            cells = []
            for name in DATAGRAMS:
                median, to = self.median(kind.name, f"{name}_us"), self.lineup.peer
                ratio = "" if kind.name == to else self.ratio(median, f"{name}_us", to)
                cells.append(number(median) + (f" (× {ratio})" if ratio else ""))
            rows.append([kind.title, *cells])
        heads = [f"{size:,} bytes {way}" if burst > 1 else f"{size} alone" for size, burst, way in DATAGRAMS.values()]
        return table(["", *heads], rows)

    def bulk_table(self):
        rows = []
        for kind in self.kinds:
            down, up = (self.median(kind.name, f"{way}_s_per_gib") for way in ("down", "up"))
            least = [number(min(self.of(kind.name, f"{way}_s_per_gib"))) for way in ("down", "up")]
            floor = self.lineup.floor
            ratios = [self.ratio(down, "down_s_per_gib", floor), self.ratio(up, "up_s_per_gib", floor)]
            rates = [number(self.median(kind.name, f"{way}_gib_per_s")) for way in ("down", "up")]
            rows.append([kind.title, number(down), number(up), *least, *ratios, *rates])
        head = ["", "down, s", "up, s", "least down", "least up", f"down × {self.lineup.floor_title}", f"up × {self.lineup.floor_title}", "GiB/s down", "up"]
        return table(head, rows)

    def memory_table(self):
        rows = []
        for kind in self.kinds:
            own, values = self.median(kind.name, "own_kib"), self.of(kind.name, "own_kib")
            low_to_high = f"{number(min(values))} to {number(max(values))}"
            others = [number(self.median(kind.name, field)) for field in ("rss_kib", "whole_mib", "cpu_ms_per_s")]
            rows.append([kind.title, number(own), low_to_high, self.ratio(own, "own_kib", self.lineup.peer), *others])
        whole = f"RSS of the whole with {self.setup.idle}, MiB"
        heads = ["own memory, KiB", "least to most", f"× {self.lineup.peer_title}", "RSS, KiB", whole, "its CPU, ms a second"]
        return table(["", *heads], rows)

    def latency_table(self, prefix):
        rows = []
        for kind in self.kinds:
            first = "alone_cpu_us" if prefix else "rate"
            value = lambda what, p: number(self.median(kind.name, f"{prefix}{what}_{p}_us"))
            answered = ["", ""] if not kind.answers else [value("answered", "p50"), value("answered", "p99")]
            echoed = [value("echoed", "p50"), value("echoed", "p99")]
            rows.append([kind.title, number(self.median(kind.name, first)), *answered, *echoed])
        first = "CPU, µs" if prefix else "tunnels/s"
        return table(["", first, "answered p50, µs", "p99", "echoed p50, µs", "p99"], rows)

    def system_call_table(self):
        rows = []
        for kind in self.kinds:
            calls = self.system_calls[kind.name]
            most = sorted(calls.items(), key=lambda item: -item[1])[:8]
            most = ", ".join(f"{name} {count:.1f}" for name, count in most if count >= 0.1)
            rows.append([kind.title, f"{sum(calls.values()):.1f}", most])
        return table(["", "all", "the most frequent"], rows)

    def all_rounds(self):
        parts = []
        for field, title in (
            ("cpu_us", "CPU for a tunnel, µs"),
            ("beside_us", "CPU of the memcached beside it, for a tunnel, µs"),
            ("rate", "Tunnels a second"),
            ("down_s_per_gib", "CPU for a GiB down, s"),
            ("up_s_per_gib", "CPU for a GiB up, s"),
            *((f"{name}_us", f"CPU for a datagram, {name.replace('_', ', ')} bytes, µs") for name in DATAGRAMS),
            ("answered_p99_us", "p99 of the time to the 200, µs"),
            ("own_kib", "Memory of an idle tunnel, KiB"),
        ):
            kinds = [kind for kind in self.kinds if any(self.of(kind.name, field))]
            rows = [[kind.name, *map(number, self.of(kind.name, field))] for kind in kinds]
            if rows:
                parts += [f"{title}:\n", table(["", *range(1, len(rows[0]))], rows)]
        return "\n".join(parts)

    # The drawings: their text, and what they show in words.

    def drawings(self):
        drawings = self.cost_drawings() if self.setup.rounds else {}
        drawings["memory"] = plot.bars(
            "Memory of an idle tunnel",
            "KiB of the proxy's own memory, the kernel's not counted",
            [""],
            self.bar_rows(self.kinds, "own_kib"),
        )
        for text, _ in drawings.values():
            ElementTree.fromstring(text)
        return drawings

    def cost_drawings(self):
        bars = []
        for title, values in self.cpu_rows():
            s = summary(values)
            bars.append((title, is_ours(title), [(s["median"], s["low"], s["high"])]))
        whiskers = "whiskers: middle half of the rounds"
        drawings = {
            "cpu-per-tunnel": plot.bars("CPU for a tunnel", f"µs of CPU; {whiskers}", [""], bars),
            "cpu-per-gib": plot.bars(
                "CPU for a GiB relayed",
                f"seconds of CPU; {whiskers}",
                ["down", "up"],
                self.bar_rows(self.kinds, "down_s_per_gib", "up_s_per_gib"),
            ),
        }
        if answering := [kind for kind in self.kinds if kind.answers]:
            drawings["latency"] = plot.bars(
                "Time to an open tunnel",
                f"µs from the client's first packet to the 200, {self.setup.clients} clients; {whiskers}",
                ["p50", "p99"],
                self.bar_rows(answering, "answered_p50_us", "answered_p99_us"),
            )
        return drawings

    def bar_rows(self, kinds, *fields):
        points = lambda kind: [self.point(kind.name, field) for field in fields]
        return [(kind.title, is_ours(kind.title), points(kind)) for kind in kinds]

    def point(self, name, field):
        s = summary(self.of(name, field))
        return s["median"], s["low"], s["high"]
