"""A DNS server whose answers change, and the mount namespace in which processes ask it."""

import os
import socket
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from tests.support.programs import need, skip

_A, _AAAA = 1, 28
_AUTHORITATIVE = 0x8580
# A name in the question of the same message.
_SAME_NAME = 0xC00C


@dataclass
class NameServer:
    """The server. `answers` maps the first letters of a name's label to its addresses: a list for each query; further

    queries get the last list. `queries` counts the queries of each name.
    """

    answers: Mapping[str, Sequence[Sequence[str]]]
    queries: Counter[str] = field(default_factory=Counter)

    def reply(self, query: bytes) -> bytes:
        """Return the answer to a query for the IPv4 or IPv6 addresses of a name."""
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += 1 + length
        name, question = ".".join(labels).lower(), query[12 : at + 5]
        (kind,) = struct.unpack_from("!H", query, at + 1)
        records = [
            struct.pack("!HHHIH", _SAME_NAME, kind, 1, 0, len(address)) + address
            for address in self._addresses(name, kind)
        ]
        return query[:2] + struct.pack("!HHHHH", _AUTHORITATIVE, 1, len(records), 0, 0) + question + b"".join(records)

    def _addresses(self, name: str, kind: int) -> list[bytes]:
        # Resolvers ask for both kinds at once.
        at = self.queries[f"{name} {kind}"]
        self.queries[f"{name} {kind}"] += 1
        lists = next((lists for prefix, lists in self.answers.items() if name.startswith(prefix)), [[]])
        addresses = map(ip_address, lists[min(at, len(lists) - 1)])
        return [address.packed for address in addresses if address.version == (4 if kind == _A else 6)]

    def was_asked(self, name: str) -> bool:
        """Return true if the address of a name was asked for."""
        return self.queries[f"{name} {_A}"] + self.queries[f"{name} {_AAAA}"] > 0


@contextmanager
def name_server(server: NameServer, address: str, directory: Path) -> Iterator[Sequence[str]]:
    """Run the server on port 53 of an address; yield the words that run a command which asks only this server.

    Skips the test if mount namespaces are not possible, except in CI.
    """
    configuration = directory / "resolv.conf"
    configuration.write_text(f"nameserver {address}\noptions timeout:2 attempts:1\n")
    mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    command = [need("unshare", package="util-linux"), "--mount", "sh", "-c", mount, str(configuration)]
    if os.geteuid() or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        skip("mount namespaces are not possible here")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind((address, 53))

        def serve() -> None:
            while (received := listener.recvfrom(4096))[0]:
                query, peer = received
                listener.sendto(server.reply(query), peer)

        thread = threading.Thread(target=serve, name="name server", daemon=True)
        thread.start()
        yield command
        # An empty message ends the thread.
        listener.sendto(b"", (address, 53))
        thread.join(10)
