"""Network namespaces for processes, and links to servers that lose all packets while they are cut."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from benchmarks.stack import Servers
from tests.support import interfaces
from tests.support.programs import need, skip

PROCESSES = ("web", "worker", "beat")
SERVERS = ("postgres", "valkey", "upstream", "sandbox")
# No interface has this hardware address, so packets for it are dropped silently.
_NOWHERE = "02:00:00:00:00:01"


@dataclass(frozen=True, kw_only=True)
class _End:
    """One end of a link: `ip` is the command in its namespace."""

    ip: Sequence[str]
    device: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link between two namespaces."""

    ends: tuple[_End, _End]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Lose all packets in both directions inside the block."""
        here, there = self.ends
        pairs = [(here, there.address), (there, here.address)]
        for end, peer in pairs:
            _run(*end.ip, "neigh", "replace", peer, "lladdr", _NOWHERE, "dev", end.device, "nud", "permanent")
        try:
            yield
        finally:
            for end, peer in pairs:
                _run(*end.ip, "neigh", "del", peer, "dev", end.device)


class Network:
    """The namespaces `web`, `worker` and `beat`, each with a link to each of the servers.

    The servers have an address for all namespaces, and clients reach the web process at `web_address`.
    """

    def __init__(self, undo: ExitStack) -> None:
        # A network for measurements between devices (RFC 2544), by process: tests may run in parallel.
        number = os.getpid()
        self._prefix = f"198.{18 + (number >> 8 & 1)}.{number & 255}"
        self._undo = undo
        self.addresses = {server: f"{self._prefix}.{193 + at}" for at, server in enumerate(SERVERS)}
        self._links: dict[tuple[str, str], Link] = {}
        for address in self.addresses.values():
            _run("ip", "address", "add", f"{address}/32", "dev", "lo")
            undo.callback(_run, "ip", "address", "del", f"{address}/32", "dev", "lo")
        for process in PROCESSES:
            name = self._namespace(process)
            _run("ip", "netns", "add", name)
            undo.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            for server in SERVERS:
                link = self._link(process, server)
                inside = link.ends[1]
                _run(*inside.ip, "route", "add", f"{self.addresses[server]}/32", "via", link.ends[0].address)
        self.web_address = self._link("web", "clients").ends[1].address

    def link(self, process: str, server: str) -> Link:
        """Return the link between a process and a server."""
        return self._links[process, server]

    def command(self, process: str) -> Sequence[str]:
        """Return the words that run a command in the namespace of a process."""
        return ("ip", "netns", "exec", self._namespace(process))

    def attach(self, servers: Servers) -> None:
        """Let the servers accept connections from the namespaces, and let the platform use their addresses there."""
        with psycopg.connect(servers.admin, autocommit=True) as connection:
            (file,) = connection.execute("SHOW hba_file").fetchone() or ("",)
            with Path(file).open("a") as rules:
                rules.write(f"host all all {self._prefix}.0/24 scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        environment = servers.environment
        with redis.Redis.from_url(environment["REDIS_URL"]) as client:
            client.config_set("bind", f"127.0.0.1 {self.addresses['valkey']}")
        for variable, server in [("DATABASE_URL", "postgres"), ("REDIS_URL", "valkey")]:
            environment[variable] = environment[variable].replace("127.0.0.1", self.addresses[server])

    def _namespace(self, process: str) -> str:
        return f"platform-{os.getpid()}-{process}"

    def _link(self, process: str, server: str) -> Link:
        name, index = self._namespace(process), len(self._links)
        device = f"pf{os.getpid()}-{index}"
        _run("ip", "link", "add", device, "type", "veth", "peer", "name", server, "netns", name)
        self._undo.callback(_run, "ip", "link", "del", device)
        outside = _End(ip=("ip",), device=device, address=f"{self._prefix}.{4 * index + 1}")
        inside = _End(ip=("ip", "-n", name), device=server, address=f"{self._prefix}.{4 * index + 2}")
        for end in (outside, inside):
            _run(*end.ip, "address", "add", f"{end.address}/30", "dev", end.device)
            _run(*end.ip, "link", "set", end.device, "up")
        self._links[process, server] = link = Link(ends=(outside, inside))
        return link


@contextmanager
def network() -> Iterator[Network]:
    """Create the namespaces and remove them at the end. Skips the test if that is not possible, except in CI."""
    need("ip", package="iproute2")
    with ExitStack() as undo:
        try:
            with interfaces.changing():
                made = Network(undo)
        except subprocess.CalledProcessError as error:
            skip(f"network namespaces are not possible here: {error.stderr.strip()}")
        yield made
        with interfaces.changing():
            undo.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
