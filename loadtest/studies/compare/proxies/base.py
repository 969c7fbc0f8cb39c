"""The base of all proxies: a folder, files, processes, and the way a client authenticates."""

import base64, os, re, socket, ssl
from rig.binaries import program
from rig.net import PATIENCE, free_port, wait_until
from rig.programs import Program
from rig.reading import descendants
from rig.report import first_line

USER, PASSWORD = "user", "pass"


def basic():
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Proxy:
    name = ""  # in file names and on the command line
    title = ""  # in tables
    program = ""  # what must be on PATH
    install = ""  # how to get it
    configuration = ""  # its file
    version_command = ["--version"]
    version_pattern = r"\d+\.\d+[\w.+-]*"
    answers = True  # and does not just relay
    tls = False
    http2 = False
    udp = False  # tunnels of UDP, on HTTP/2
    resets = False  # tunnels end by a reset, not by the end of the stream
    fewest = 1  # HTTP/2 connections: some close one after 1,000 resets

    def __init__(self, setup, number, folder=None):
        self.setup = setup
        self.folder = folder or os.path.join(setup.work, f"{self.name}-{number}")
        os.mkdir(self.folder, 0o755)
        self.port = free_port()
        # Its own target address, so that one proxy's closed connections do not take another's ports.
        self.target = f"127.0.1.{number % 250 + 1}:{setup.target_port}"
        self.processes = {}

    # The definition of a proxy.

    def files(self):
        """The files it is started with, the configuration among them."""
        raise NotImplementedError

    def command(self):
        raise NotImplementedError

    def beside(self):
        """Other programs that it needs, by name."""
        return {}

    def credentials(self, _count):
        """The driver's arguments to open this number of tunnels."""
        return ["--authorization", basic()]

    def way(self, connections=1):
        """The driver's arguments to reach it; `connections` is how many HTTP/2 connections the tunnels share."""
        tls = ["--ca", self.setup.certificate.ca] if self.tls else []
        way = tls + (["--http2", str(max(connections, self.fewest))] if self.http2 else [])
        return way + ["--udp"] * self.udp + ["--reset"] * self.resets

    def ready(self):
        """Whether it answers: some listen before they can answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as stream:
                if self.tls:
                    trusting = ssl.create_default_context(cafile=self.setup.certificate.ca)
                    trusting.wrap_socket(stream, server_hostname="localhost").close()
                    return True
                stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return stream.recv(1) != b""
        except OSError:
            return False

    @classmethod
    def found(cls):
        return program(cls.program)

    @classmethod
    def version(cls):
        found = re.search(cls.version_pattern, first_line(cls.found(), *cls.version_command))
        return f"{cls.program} {found.group() if found else 'of an unknown version'}"

    # Starting and stopping.

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self):
        for name, text in self.files().items():
            with open(self.path(name), "w") as file:
                file.write(text)
        for name, command in self.beside().items():
            self.spawn(name, command)
        self.spawn(self.name, self.command())

        def now():
            for process in self.processes.values():
                process.check()
            return self.ready()

        wait_until(f"{self.title} answers", now)

    def spawn(self, name, command):
        """Starts a program that leads its own session, so that its children end with it."""
        self.processes[name] = Program(name, command, self.path(f"{name}.log"), session=True, cwd=self.folder)

    def output(self):
        """The end of its programs' output."""
        return "".join(process.output() for process in self.processes.values())

    def stop(self):
        for process in self.processes.values():
            process.stop()
        self.processes = {}

    def pids(self):
        """Its processes, children included, by program."""
        return {name: descendants(process.pid) for name, process in self.processes.items()}
