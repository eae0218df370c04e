"""Random runs on a platform of several processes, some of which are killed, with the results of the clients."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson

from benchmarks.books.runs import TERMINAL, LargeBatch, Run
from benchmarks.books.upstream import LABEL, REFUSAL, BookkeepingUpstream, running_upstream
from benchmarks.samples import GRAMMAR_TOOL, PICTURE, WAV
from benchmarks.stack import MANAGE, Server, Servers, is_up, running_servers
from launcher import processes
from launcher.address import any_free_port

KINDS = {
    "json": 18,
    "stream": 18,
    "background": 14,
    "background_stream": 6,
    "socket": 10,
    "chat": 12,
    "chat_stream": 12,
    "embedding": 6,
    "image": 4,
    "speech": 4,
    "transcription": 4,
}
_ATTEMPTS = 100
_LEASE_SECONDS = 4
_WORKER_READY = "the worker claims background responses"
_TIMEOUT = aiohttp.ClientTimeout(total=120)
_POLL_SECONDS = 0.2
_LONGEST_PATIENCE = 0.6


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of runs and clients, and the seconds between kills (None: no kills).

    Beside the runs, a batch of `batch_lines` lines is executed.
    """

    runs: int
    batch_lines: int = 0
    clients: int = 8
    seed: int = 1
    kill_workers_every: float | None = None
    kill_webs_every: float | None = None
    patience: float = 3600.0


@dataclass(kw_only=True)
class Deployment:
    """Web processes and workers that can be killed one by one."""

    servers: Servers
    key: str
    webs: list[tuple[str, Server]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    workers: list[Server] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    _started: int = 0

    def add_web(self) -> None:
        """Start another web process without waiting for it. Clients may use it once it is in `urls`."""
        self._started += 1
        port = any_free_port()
        url = f"http://127.0.0.1:{port}"
        argv = (sys.executable, MANAGE, "web", "--host", "127.0.0.1", "--port", str(port))
        web = self.servers.start(f"web-{self._started}", *argv, PORT=str(port))
        web.is_ready = partial(is_up, f"{url}/readyz")
        self.webs.append((url, web))

    def add_worker(self) -> None:
        """Start another worker without waiting for it."""
        self._started += 1
        name = f"worker-{self._started}"
        worker = self.servers.start(name, sys.executable, MANAGE, "worker", "--concurrency", "40")
        worker.is_ready = lambda: _WORKER_READY in self.servers.log(name).read_text(errors="replace")
        self.workers.append(worker)

    async def kill_web(self) -> None:
        """Kill the oldest web process and start a new one."""
        await self._ready([web for _, web in self.webs])
        url, web = self.webs.pop(0)
        self.urls.remove(url)
        _kill(web)
        self.killed["web"] += 1
        self.add_web()
        url, web = self.webs[-1]
        await self._ready([web])
        self.urls.append(url)

    async def kill_worker(self) -> None:
        """Kill the oldest worker and start a new one."""
        await self._ready(self.workers)
        _kill(self.workers.pop(0))
        self.add_worker()
        self.killed["worker"] += 1

    async def _ready(self, servers: list[Server]) -> None:
        await until(lambda: all(server.is_ready() for server in servers))


def _kill(server: Server) -> None:
    processes.kill_group(server.process)
    server.process.wait(30)


async def until(condition: Callable[[], bool], *, seconds: float = 600.0) -> None:
    """Wait for a condition, which is evaluated in a thread. Raises TimeoutError."""
    if not await asyncio.to_thread(processes.wait_until, condition, seconds=seconds):
        raise TimeoutError(f"still waiting after {seconds:g} seconds")


@contextmanager
def _running_deployment(*, directory: Path, upstream: str) -> Iterator[Deployment]:
    with running_servers(directory, durable=False) as servers:
        servers.environment |= {
            "EGRESS_ALLOW": "127.0.0.1",
            "LEASE_SECONDS": str(_LEASE_SECONDS),
            "BACKGROUND_ATTEMPTS": str(_ATTEMPTS),
            "SEARXNG_URL": upstream,
        }
        deployment = Deployment(servers=servers, key=servers.route(upstream))
        yield deployment


def _start(deployment: Deployment) -> None:
    deployment.servers.start("beat", sys.executable, MANAGE, "beat")
    for _ in range(2):
        deployment.add_web()
        deployment.add_worker()
    for server in (*deployment.workers, *(web for _, web in deployment.webs)):
        deployment.servers.wait_for(server)
    deployment.urls += [url for url, _ in deployment.webs]


@dataclass(kw_only=True)
class Books:
    """Everything that is compared afterwards: the upstream's lines, the runs of the clients, and the platform.

    `batch_faults` are the faults of the batch and its result files.
    """

    plan: Plan
    upstream: BookkeepingUpstream
    deployment: Deployment
    log: Callable[[str], None]
    runs: list[Run] = field(default_factory=list)
    batch_faults: list[str] = field(default_factory=list)
    is_over: bool = False
    _http: aiohttp.ClientSession = field(init=False, repr=False)

    async def drive(self) -> None:
        """Execute all runs, and kill processes meanwhile."""
        headers = {"Authorization": f"Bearer {self.deployment.key}"}
        async with (
            asyncio.timeout(self.plan.patience),
            aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as http,
        ):
            self._http = http
            async with asyncio.TaskGroup() as group:
                strikes = [
                    group.create_task(self._strike(every, strike))
                    for every, strike in (
                        (self.plan.kill_workers_every, self.deployment.kill_worker),
                        (self.plan.kill_webs_every, self.deployment.kill_web),
                    )
                    if every
                ]
                numbers = iter(range(self.plan.runs))
                await asyncio.gather(self._batch(), *(self._client(numbers) for _ in range(self.plan.clients)))
                self.is_over = True
                for strike in strikes:
                    strike.cancel()

    async def _strike(self, every: float, strike: Callable[[], Any]) -> None:
        chance, replaced_in = Random(self.plan.seed), 0.0
        while not self.is_over:
            # Runs get at least as much time as the replacement of a process took. On a slow machine they would never
            # end otherwise.
            await asyncio.sleep(max(every * chance.uniform(0.5, 1.5), replaced_in))
            if not self.is_over:
                began = time.monotonic()
                # Shielded: a process that is being replaced must be in the list when the servers are stopped.
                await asyncio.shield(strike())
                replaced_in = time.monotonic() - began

    async def _client(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            chance = Random(f"{self.plan.seed}/{number}")
            [kind] = chance.choices(list(KINDS), list(KINDS.values()))
            run = Run(name=f"run-{number}", kind=kind)
            self.runs.append(run)
            try:
                await getattr(self, f"_{kind}")(run, chance)
            except (aiohttp.ClientError, OSError, TimeoutError):
                run.broke = True
                # The killed process is replaced at another address.
                await asyncio.sleep(_POLL_SECONDS)
            if number and number % 500 == 0:
                self.log(f"{number} runs, {len(self.upstream.lines)} calls, killed {dict(self.deployment.killed)}")

    async def _batch(self) -> None:
        if not self.plan.batch_lines:
            return
        chance = Random(f"{self.plan.seed}/batch")
        batch = LargeBatch(
            lines=self.plan.batch_lines,
            http=self._http,
            url=lambda: chance.choice(self.deployment.urls),
        )
        self.batch_faults = await batch.faults()
        self.log(f"the batch of {self.plan.batch_lines} lines has ended")

    def _url(self, chance: Random, path: str) -> str:
        return f"{chance.choice(self.deployment.urls)}/v1{path}"

    # -- responses -----------------------------------------------------------------------------------------------------

    def _body(self, run: Run, chance: Random, **more: Any) -> dict[str, Any]:
        text = f"{run.name} Go."
        body: dict[str, Any] = {"model": "m", "input": text, "safety_identifier": run.name, **more}
        if chance.random() < 0.15:
            parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": PICTURE}]
            body["input"] = [{"role": "user", "content": parts}]
        if chance.random() < 0.6:
            server = {
                "type": "mcp",
                "server_label": LABEL,
                "server_url": f"{self.upstream.url}/mcp",
                "require_approval": "never",
            }
            body["tools"] = [server]
        if chance.random() < 0.3:
            body["tools"] = [*body.get("tools", ()), {"type": "web_search"}]
        if chance.random() < 0.15:
            body["tools"] = [*body.get("tools", ()), GRAMMAR_TOOL]
        body["store"] = run.is_stored = chance.random() < 0.8 or "background" in more
        return body

    def _read(self, run: Run, response: dict[str, Any]) -> None:
        run.response_id, run.status = response.get("id", run.response_id), response.get("status", "")
        if run.status in TERMINAL:
            run.usage = response["usage"]

    async def _json(self, run: Run, chance: Random) -> None:
        patience = chance.uniform(0, _LONGEST_PATIENCE) if chance.random() < 0.15 else None
        try:
            async with (
                asyncio.timeout(patience),
                self._http.post(self._url(chance, "/responses"), json=self._body(run, chance)) as answer,
            ):
                self._read(run, await answer.json())
        except TimeoutError:
            if patience is None:
                raise
            run.was_left = True

    async def _stream(self, run: Run, chance: Random) -> None:
        body = self._body(run, chance, stream=True)
        async with self._http.post(self._url(chance, "/responses"), json=body) as answer:
            await self._events(run, answer, chance, cancels=body["store"])

    async def _events(self, run: Run, answer: aiohttp.ClientResponse, chance: Random, *, cancels: bool) -> None:
        """Read a stream to its end, leave it after some events, or cancel its response."""
        fate, enough = chance.random(), chance.randrange(1, 40)
        seen = 0
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event, seen = json.loads(line[6:]), seen + 1
            if "response" in event:
                self._read(run, event["response"])
            if seen == enough and fate < 0.12:
                run.was_left = True
                answer.close()
                return
            if seen == enough and fate < 0.2 and cancels:
                await self._cancel(run, chance)
        if answer.status == 200 and run.status not in TERMINAL:
            run.broke = True

    async def _cancel(self, run: Run, chance: Random) -> None:
        run.was_left = True
        async with self._http.post(self._url(chance, f"/responses/{run.response_id}/cancel")):
            pass

    async def _background(self, run: Run, chance: Random) -> None:
        body = self._body(run, chance, background=True)
        async with self._http.post(self._url(chance, "/responses"), json=body) as answer:
            self._read(run, await answer.json())
        if not run.response_id:
            return
        if chance.random() < 0.15:
            await asyncio.sleep(chance.uniform(0, 2 * _LONGEST_PATIENCE))
            await self._cancel(run, chance)
        while run.status not in TERMINAL:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                async with self._http.get(self._url(chance, f"/responses/{run.response_id}")) as answer:
                    self._read(run, await answer.json())
            except (aiohttp.ClientError, OSError):
                # The web process was killed, so the run belongs to another process.
                continue

    async def _background_stream(self, run: Run, chance: Random) -> None:
        body = self._body(run, chance, background=True, stream=True)
        async with self._http.post(self._url(chance, "/responses"), json=body) as answer:
            await self._events(run, answer, chance, cancels=True)

    async def _socket(self, run: Run, chance: Random) -> None:
        fate, enough = chance.random(), chance.randrange(1, 40)
        async with self._http.ws_connect(self._url(chance, "/responses").replace("http", "ws", 1)) as socket:
            await socket.send_json({"type": "response.create", **self._body(run, chance)})
            seen = 0
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                event, seen = json.loads(message.data), seen + 1
                if "response" in event:
                    self._read(run, event["response"])
                if event["type"] == "error" or run.status in TERMINAL:
                    return
                if seen == enough and fate < 0.15:
                    run.was_left = True
                    return
            run.broke = True

    # -- other endpoints -----------------------------------------------------------------------------------------------

    async def _chat(self, run: Run, chance: Random) -> None:
        await self._document(run, chance, "/chat/completions", json=self._messages(run, chance))

    async def _chat_stream(self, run: Run, chance: Random) -> None:
        body = {**self._messages(run, chance), "stream": True, "stream_options": {"include_usage": True}}
        leaves, enough, seen = chance.random() < 0.15, chance.randrange(1, 20), 0
        async with self._http.post(self._url(chance, "/chat/completions"), json=body) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk, seen = json.loads(line[6:]), seen + 1
                if chunk.get("usage"):
                    run.usage = chunk["usage"]
                if leaves and seen == enough:
                    run.was_left = True
                    answer.close()
                    return

    def _messages(self, run: Run, chance: Random) -> dict[str, Any]:
        content: Any = f"{run.name} Go."
        if chance.random() < 0.2:
            content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": {"url": PICTURE}}]
        messages = [{"role": "user", "content": content}]
        return {"model": "m", "messages": messages, "safety_identifier": run.name}

    async def _embedding(self, run: Run, chance: Random) -> None:
        body = {"model": "e", "input": f"{run.name} Go.", "user": run.name}
        await self._document(run, chance, "/embeddings", json=body)

    async def _image(self, run: Run, chance: Random) -> None:
        body = {"model": "i", "prompt": f"{run.name} Draw.", "user": run.name}
        await self._document(run, chance, "/images/generations", json=body)

    async def _speech(self, run: Run, chance: Random) -> None:
        text = f"{run.name} Say that." + " Again." * chance.randrange(40)
        body = {"model": "s", "input": text, "voice": "alloy"}
        await self._answered(run, chance, "/audio/speech", json=body)

    async def _transcription(self, run: Run, chance: Random) -> None:
        form = aiohttp.FormData({"model": "t", "prompt": f"{run.name} Write."})
        form.add_field("file", WAV, filename="a.wav", content_type="audio/wav")
        await self._answered(run, chance, "/audio/transcriptions", data=form)

    async def _document(self, run: Run, chance: Random, path: str, *, json: dict[str, Any]) -> None:
        if content := await self._answered(run, chance, path, json=json):
            run.usage = orjson.loads(content).get("usage")

    async def _answered(self, run: Run, chance: Random, path: str, *, json: Any = None, data: Any = None) -> bytes:
        """Return the body of an answer, or nothing if the client left before it."""
        patience = chance.uniform(0, _LONGEST_PATIENCE / 2) if chance.random() < 0.15 else None
        try:
            async with (
                asyncio.timeout(patience),
                self._http.post(self._url(chance, path), json=json, data=data) as answer,
            ):
                content = await answer.read()
                # The upstream refuses some requests as well.
                if answer.status == 400 and REFUSAL.encode() not in content:
                    raise ValueError(f"{path}: {content!r}")
                return content
        except TimeoutError:
            if patience is None:
                raise
            run.was_left = True
            return b""


@asynccontextmanager
async def driven(
    plan: Plan, *, directory: Path, configure: Callable[[Deployment], None], log: Callable[[str], None]
) -> AsyncIterator[Books]:
    """Execute the plan. The platform keeps running inside the block."""
    async with running_upstream(seed=plan.seed) as upstream:
        with _running_deployment(directory=directory, upstream=upstream.url) as deployment:
            configure(deployment)
            await asyncio.to_thread(_start, deployment)
            log("all processes are running")
            books = Books(plan=plan, upstream=upstream, deployment=deployment, log=log)
            await books.drive()
            yield books
