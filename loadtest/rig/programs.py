"""The programs that are measured, each on free ports of loopback, and stopped at the end."""

import os, re, resource, shutil, signal, socket, subprocess, sys, tempfile, threading
from . import Failed, configs
from .binaries import needed, postern
from .net import PATIENCE, free_address, is_ready, listens, wait_until


def end(process, send=None, patience=PATIENCE):
    """SIGTERM and a wait, then SIGKILL if the process still runs. `send` sends a signal to it."""
    send = send or process.send_signal
    if process.poll() is None:
        send(signal.SIGTERM)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            send(signal.SIGKILL)
            process.wait()


def stop_on_sigterm():
    """Ends all started programs on SIGTERM, as on Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))


def many_files():
    """Raises the limit of open files to its maximum, for this process and its children; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def served(serve, backlog=4096):
    """Runs `serve` with a listener on loopback in a process of its own; its address and process id."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    address, child = "127.0.0.1:%d" % listener.getsockname()[1], os.fork()
    if child:
        listener.close()
        return address, child
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        serve(listener)
    finally:
        os._exit(1)


class Program:
    """A process, and the file with its output. With `session` it leads one, and its children end with it."""

    def __init__(self, name, command, log, address=None, admin=None, session=False, **options):
        self.name, self.log, self.address, self.admin, self.session = name, log, address, admin, session
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=session, **options
            )
        self.pid = self.process.pid

    def output(self):
        """The end of its output."""
        with open(self.log, errors="replace") as file:
            return file.read()[-2000:]

    def check(self):
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended at its start: {self.output()}")

    def stop(self):
        if not self.session:
            return end(self.process)
        end(self.process, lambda number: os.killpg(self.pid, number))
        try:
            os.killpg(self.pid, signal.SIGKILL)  # children that outlived it
        except ProcessLookupError:
            pass


def memcached_command(where, megabytes=256, threads=1, connections=4096, more=()):
    """A server that refuses to evict: `-M`, as `deploy/` runs it. `where` is an address or the path of a socket."""
    host, _, port = where.rpartition(":")
    place = ["-s", where] if "/" in where else ["-l", host, "-p", port]
    sizes = ["-U", "0", "-t", str(threads), "-m", str(megabytes), "-M", "-c", str(connections)]
    user = ["-u", "root"] if os.geteuid() == 0 else []
    return [needed("memcached"), *place, *sizes, *more, *user]


class Programs:
    """Starts programs in a directory of their own; leaving the `with` block stops them and removes it."""

    def __enter__(self):
        postern(), needed("memcached")
        stop_on_sigterm()
        self.home = tempfile.mkdtemp(prefix="postern-loadtest-")
        self.running, self.number, self.issuer_url = [], 0, None
        return self

    def __exit__(self, *_):
        for program in reversed(self.running):
            program.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self, *programs):
        for program in programs:
            program.stop()
            self.running.remove(program)

    def path(self, name):
        self.number += 1
        return os.path.join(self.home, f"{self.number}-{name}")

    def start(self, name, command, address, admin=None):
        """A program that serves `address`, once it does; with `admin`, once /readyz reports ready."""
        program = Program(name, command, self.path(name + ".log"), address, admin)
        self.running.append(program)

        def now():
            program.check()
            if "/" in address:
                return os.path.exists(address)
            return is_ready(admin) if admin else listens(address)

        wait_until(f"{name} is ready", now)
        return program

    def config(self, name, text):
        path = self.path(name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def memcached(self, megabytes=256, threads=1, more=(), where=None):
        where = where or free_address()
        return self.start("memcached", memcached_command(where, megabytes, threads, more=more), where)

    def twemproxy(self, servers, timeout=100):
        """One process in front of `servers`; `timeout` in milliseconds."""
        address, stats = free_address(), free_address()
        text = configs.twemproxy(address, [server.address for server in servers], timeout)
        host, port = stats.split(":")
        command = [needed("nutcracker"), "-c", self.config("nutcracker.yml", text), "-a", host, "-s", port,
                   "-o", "/dev/stderr"]  # Debian's writes to /var/log/nutcracker by itself
        return self.start("twemproxy", command, address)

    def issuer(self):
        address, admin = free_address(), free_address()
        text = configs.issuer(address, admin, self.path("keys"))
        self.issuer_url = f"http://{address}"
        command = [postern(), "issuer", "--config", self.config("issuer.toml", text)]
        return self.start("issuer", command, address, admin)

    def gateway(self, store, workers=1, tls=None, **limits):
        """A gateway with the section `[store]` given as text; `tls` are the keys of `[tls]`."""
        address, admin = free_address(), free_address()
        text = configs.gateway(address, admin, self.issuer_url, store, workers, configs.LIMITS | limits, tls)
        command = [postern(), "gateway", "--config", self.config("gateway.toml", text)]
        return self.start("gateway", command, address, admin)


def start_up(home):
    """`postern up` on free ports, with its data in `home`: the process, and its addresses by name."""
    command = [postern(), "up", "--data", os.path.join(home, "data"), "--open-egress"]
    for name in ("client", "gateway", "issuer", "admin"):
        command += [f"--{name}", "127.0.0.1:0"]
    log = os.path.join(home, "up.stderr")
    with open(log, "wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
    output = ""
    while "Ctrl-C stops it" not in output:
        line = process.stdout.readline()
        if not line:
            end(process)
            with open(log) as errors:
                raise Failed(f"postern up ended before it was ready:\n{errors.read()}")
        output += line
    threading.Thread(target=process.stdout.read, daemon=True).start()  # so that it never waits for a reader
    names = ("agent", "gateway", "issuer", "admin")
    return process, {name: re.search(rf"{name} +http://([\d.:]+)", output)[1] for name in names}
