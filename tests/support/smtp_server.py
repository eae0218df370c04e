"""An SMTP server over loopback that stores received mails and refuses messages as scripted."""

import asyncio
import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

from tests.support.waiting import PATIENCE, eventually

_SECONDS = PATIENCE


@dataclass
class SmtpServer:
    """The server. `answers` are the next answers to the end of a message, followed by 250.

    Messages to addresses in `refused` get 550. With a `password`, clients must sign in as `platform`. While `gate` is
    closed, the server accepts connections but sends nothing.
    """

    port: int = 0
    answers: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    password: str = ""
    messages: list[EmailMessage] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    connections: int = 0
    here: int = 0
    starttls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """Value of EMAIL_URL."""
        return f"smtp://127.0.0.1:{self.port}"

    def wait_for(self, number: int, *, seconds: float = PATIENCE) -> list[EmailMessage]:
        """Wait for a number of messages and return all."""
        eventually(lambda: len(self.messages) >= number, seconds=seconds)
        return self.messages

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a connection."""
        self.connections += 1
        self.here += 1
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.005)
            await self._session(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, or refused the certificate
        finally:
            self.here -= 1
            writer.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        await say("220 localhost")
        may_send = not self.password
        while line := (await reader.readline()).decode().strip():
            command = line.split(":")[0].upper()
            if command.startswith("EHLO") and self.starttls and writer.get_extra_info("sslcontext") is None:
                await say("250-localhost")
                await say("250 STARTTLS")
            elif command == "STARTTLS" and self.starttls:
                await say("220 go ahead")
                await writer.start_tls(self.starttls)
            elif command.startswith("EHLO") and self.password:
                await say("250-localhost")
                await say("250 AUTH PLAIN")
            elif command.startswith("AUTH PLAIN"):
                given = base64.b64decode(line.split()[2]).decode()
                may_send = given == f"\0platform\0{self.password}"
                await say("235 welcome" if may_send else "535 wrong password")
            elif command == "MAIL FROM" and not may_send:
                await say("530 sign in first")
            elif command == "DATA":
                await say("354 go ahead")
                data = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n.")
                answer = self.answers.pop(0) if self.answers else "250 accepted"
                # Kept even if it is refused afterwards, because a server may lose its answer but not the message.
                self.messages.append(message_from_bytes(data, policy=default))
                await say(answer)
            elif command == "RCPT TO" and any(address in line for address in self.refused):
                await say("550 no such mailbox")
            elif command == "QUIT":
                await say("221 bye")
                return
            else:
                await say("250 localhost")


@contextmanager
def running_smtp_server(*, closed: bool = False, tls: ssl.SSLContext | None = None) -> Iterator[SmtpServer]:
    """Run a server on a free port. With `tls`, connections are encrypted from the start."""
    server = SmtpServer()
    if not closed:
        server.gate.set()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="smtp", daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls), loop)
    sockets = listening.result(_SECONDS)
    server.port = sockets.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.gate.set()
        loop.call_soon_threadsafe(sockets.close)
        eventually(lambda: server.here == 0, seconds=_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_SECONDS)
        loop.close()
