"""What all proxies have in common: a folder of their own, files, processes, and the way a client authenticates."""

import base64, os, random, re, shutil, signal, socket, subprocess, time

USER, PASSWORD = "user", "pass"
PATIENCE = 60  # seconds that a program may take to start or to stop; only a broken one does


def basic():
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def free_port():
    """A free port below those that the system hands out: no connection of a tunnel will take it meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    while True:
        port = random.randrange(10000, max(first, 20000))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
                return port
            except OSError:
                continue


def descendants(root):
    """The process and all below it."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


class Proxy:
    name = ""  # in file names and on the command line
    title = ""  # in tables
    program = ""  # what must be on PATH
    install = ""  # how to get it
    configuration = ""  # its file
    version_command = ["--version"]
    version_pattern = r"\d+\.\d+[\w.+-]*"

    def __init__(self, setup, number):
        self.setup = setup
        self.folder = os.path.join(setup.work, f"{self.name}-{number}")
        os.mkdir(self.folder, 0o755)
        self.port = free_port()
        # A target address of its own, so that one proxy's closed connections do not crowd another's ports.
        self.target = f"127.0.1.{number % 250 + 1}:{setup.target_port}"
        self.processes = {}

    # What a proxy says about itself.

    def files(self):
        """The files it is started with, the configuration among them."""
        raise NotImplementedError

    def command(self):
        raise NotImplementedError

    def beside(self):
        """Other programs that it needs, by name."""
        return {}

    def credentials(self, _count):
        """The driver's arguments to open so many tunnels."""
        return ["--authorization", basic()]

    def ready(self):
        """Whether it answers: some listen before they can."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as stream:
                stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return stream.recv(1) != b""
        except OSError:
            return False

    @classmethod
    def found(cls, _setup):
        return shutil.which(cls.program)

    @classmethod
    def version(cls, setup):
        command = [cls.found(setup), *cls.version_command]
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        return f"{cls.program} {re.search(cls.version_pattern, said).group()}"

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
        began = time.monotonic()
        while not self.ready():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"{self.title} does not start: {self.output()}")
            time.sleep(0.05)

    def output(self):
        """The end of what its programs wrote."""
        with open(self.path("output")) as file:
            return file.read()[-2000:]

    def spawn(self, name, command):
        with open(self.path("output"), "a") as output:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def stop(self):
        """Each program leads a session of its own: its children end with it."""
        for process in self.processes.values():
            for name in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, name)
                    process.wait(timeout=PATIENCE)
                except ProcessLookupError:
                    pass
                except subprocess.TimeoutExpired:
                    continue
        self.processes = {}

    def pids(self):
        """Its processes, children included, by program."""
        return {name: descendants(process.pid) for name, process in self.processes.items()}
