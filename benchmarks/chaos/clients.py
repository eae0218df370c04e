"""Clients of the mixed load that behave as docs/howto/restarts.md describes, and check everything they receive.

They send failed requests again as the SDK does (two more times, after a pause that grows), and read on from another web
process when the stream of a stored response ends too soon.
"""

import asyncio
import base64
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from typing_extensions import override

from benchmarks.books.runs import TERMINAL, Run
from benchmarks.books.upstream import LABEL, spoken
from benchmarks.chaos.checking_upstream import LOOKED_UP, PROGRAM, SECRET, answer_to
from benchmarks.mixed import Load, Team
from benchmarks.rolling_restart import Balancer
from benchmarks.samples import GRAMMAR_TOOL, PICTURE, WAV

RETRIES = 2
_RETRIED = {408, 409, 429}
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 8.0
_LONGEST_RETRY_AFTER = 60.0
_POLL_SECONDS = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=60)
_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_read=60)
_LONGEST_CHAIN = 20
_LONGEST_CONVERSATION = 40
_FILE_BYTES = 8_000
_DELTA = "response.output_text.delta"
_NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


class UnavailableError(Exception):
    """A request has failed in spite of its repetitions."""


class WrongAnswerError(Exception):
    """An answer differs from the expected one."""


@dataclass(kw_only=True)
class Request:
    """A request of a client with all its repetitions. `failure` is empty if it has succeeded. Times are monotonic."""

    kind: str
    name: str
    began: float
    ended: float = 0.0
    repeated: int = 0
    failure: str = ""


@dataclass(kw_only=True)
class Tenant(Team):
    """A team with the number that its requests carry, and the threads that it continues."""

    number: int
    threads: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9)))
    chain_thread: str = ""
    conversation_thread: str = ""

    def thread(self) -> str:
        """Return the name of a new thread."""
        return f"t{self.number}.{next(self.threads)}"


class CheckedLoad(Load):
    """Sends requests through the balancer and stores the results.

    `acknowledged` has the responses that clients know, by id: their team, and the final object if it was received.
    `files` has the contents of uploaded files by team and id, `wrong` the wrong answers.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tenants: Sequence[Tenant],
        balancer: Balancer,
        *,
        seed: int,
        mcp_url: str,
        cookie: str,
        has_sandbox: bool,
    ) -> None:
        super().__init__(session, tenants, seed=seed, interval=60.0)
        self.tenants, self._balancer, self.mcp_url, self.cookie = tenants, balancer, mcp_url, cookie
        self._shares = {action: share for action, share in SHARES.items() if has_sandbox or action is not run_code}
        self.requests: list[Request] = []
        self.runs: list[Run] = []
        self.acknowledged: dict[str, tuple[Tenant, dict[str, Any] | None]] = {}
        self.files: dict[tuple[int, str], bytes] = {}
        self.wrong: list[str] = []

    @override
    async def act(self) -> None:
        """Do something as a random team."""
        [tenant] = self._random.choices(self.tenants, self._weights)
        [action] = self._random.choices(list(self._shares), list(self._shares.values()))
        try:
            await action(self, tenant)
        except UnavailableError as failed:
            self.errors[f"{action.__name__}: {failed}"[:200]] += 1
        except WrongAnswerError as wrong:
            self.wrong.append(f"{action.__name__}: {wrong}")
        except Exception as error:
            self.wrong.append(f"{action.__name__}: {error!r}")
        else:
            self.done[action.__name__] += 1

    @asynccontextmanager
    async def request(self, kind: str, name: str) -> AsyncIterator[Request]:
        """Record a request and its outcome."""
        made = Request(kind=kind, name=name, began=time.monotonic())
        try:
            yield made
        except (UnavailableError, WrongAnswerError) as failed:
            made.failure = str(failed)[:300]
            raise
        finally:
            made.ended = time.monotonic()
            self.requests.append(made)

    async def call(
        self,
        made: Request,
        tenant: Tenant,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        form: Callable[[], aiohttp.FormData] | None = None,
        cookie: str = "",
    ) -> bytes:
        """Send a request as the SDK does and return the body of the answer with status 200."""
        headers = {"Cookie": cookie} if cookie else dict(tenant.headers)
        if form is not None:
            headers.pop("Content-Type")
        for attempt in range(RETRIES + 1):
            data: Any = form() if form is not None else None if body is None else orjson.dumps(body)
            wait = None
            try:
                async with self._session.request(
                    method,
                    self._balancer.choose().url + path,
                    data=data,
                    headers=headers,
                    timeout=_TIMEOUT,
                    allow_redirects=False,
                ) as answer:
                    content = await answer.read()
                    if answer.status == 200:
                        return content
                    failure = f"{method} {_pattern(path)}: {answer.status} {content[:160]!r}"
                    if attempt and method == "DELETE" and answer.status == 404:
                        # The first attempt has deleted it.
                        return b"{}"
                    if answer.status not in _RETRIED and answer.status < 500:
                        raise UnavailableError(failure)
                    wait = answer.headers.get("retry-after")
            except _NETWORK_ERRORS as error:
                failure = f"{method} {_pattern(path)}: {type(error).__name__} {error}"
            if attempt == RETRIES:
                raise UnavailableError(failure)
            made.repeated += 1
            await _pause(attempt, wait)
        raise AssertionError

    # -- responses -----------------------------------------------------------------------------------------------------

    async def create(self, made: Request, tenant: Tenant, text: str = "plain", **more: Any) -> dict[str, Any]:
        """Create a response and return it."""
        body = self.body(made, text, **more)
        return self.read(tenant, made, orjson.loads(await self.call(made, tenant, "POST", "/v1/responses", body)))

    def body(self, made: Request, text: str, **more: Any) -> dict[str, Any]:
        """Return the body of a request for a response."""
        return {"model": "m", "input": f"{made.name} {text}", "safety_identifier": made.name, **more}

    def read(self, tenant: Tenant, made: Request, response: dict[str, Any]) -> dict[str, Any]:
        """Keep a response and check it if it has ended."""
        status = response["status"]
        is_over = status in TERMINAL
        self.acknowledged[response["id"]] = (tenant, response if is_over else None)
        if is_over:
            run = Run(name=made.name, kind=made.kind, response_id=response["id"], status=status, is_stored=True)
            run.usage = response["usage"]
            self.runs.append(run)
        if status == "completed":
            check_output(made.name, response["output"])
        elif is_over and status != "cancelled":
            raise UnavailableError(f"response {status}: {response['error']}")
        return response

    async def read_stream(self, made: Request, tenant: Tenant, body: Mapping[str, Any]) -> dict[str, Any]:
        """Read the stream of a response to its end, from several processes if necessary, and return the response."""
        events, response_id, failures = _Events(), "", 0
        while events.final is None:
            target = self._balancer.choose().url + "/v1/responses"
            last, wait = events.last, None
            if response_id:
                query = {"stream": "true", "starting_after": str(last)}
                sending = self._session.get(
                    f"{target}/{response_id}", params=query, headers=tenant.headers, timeout=_STREAM_TIMEOUT
                )
            else:
                content = orjson.dumps({**body, "stream": True})
                sending = self._session.post(target, data=content, headers=tenant.headers, timeout=_STREAM_TIMEOUT)
            try:
                async with sending as answer:
                    if answer.status == 200:
                        async for line in answer.content:
                            if line.startswith(b"data: {"):
                                events.receive(orjson.loads(line[6:]))
                        failure = "the stream ended too soon"
                    else:
                        content = await answer.read()
                        failure = f"{'GET' if response_id else 'POST'} stream: {answer.status} {content[:160]!r}"
                        if answer.status not in _RETRIED and answer.status < 500:
                            raise UnavailableError(failure)
                        wait = answer.headers.get("retry-after")
            except _NETWORK_ERRORS as error:
                failure = f"{'GET' if response_id else 'POST'} stream: {type(error).__name__} {error}"
            if events.response_id and not response_id:
                response_id = events.response_id
                self.acknowledged[response_id] = (tenant, None)
            if events.error:
                raise UnavailableError(f"error event: {events.error}")
            if events.final is None:
                failures = 0 if events.last > last else failures
                if failures == RETRIES:
                    raise UnavailableError(failure)
                made.repeated += 1
                await _pause(failures, wait)
                failures += 1
        response = self.read(tenant, made, events.final)
        if response["status"] == "completed" and not answer_to(made.name) == events.texts[-1]:
            raise WrongAnswerError(f"the deltas of {response['id']} are {events.texts}")
        return response


class _Events:
    """The events that were received of a stream."""

    def __init__(self) -> None:
        self.last, self.response_id, self.error = -1, "", ""
        self.final: dict[str, Any] | None = None
        self._texts: dict[int, str] = {}

    @property
    def texts(self) -> list[str]:
        """Texts of the messages, joined from their deltas."""
        return [text for _, text in sorted(self._texts.items())] or [""]

    def receive(self, event: dict[str, Any]) -> None:
        """Record an event. Raises WrongAnswerError if it is not the next one."""
        if event["type"] == "error":
            self.error = str(event)[:200]
        if event["sequence_number"] != self.last + 1:
            raise WrongAnswerError(f"event {event['sequence_number']} of {self.response_id} came after {self.last}")
        self.last += 1
        if "response" in event:
            self.response_id = event["response"]["id"]
            if event["response"]["status"] in TERMINAL:
                self.final = event["response"]
        elif event["type"] == _DELTA:
            self._texts[event["output_index"]] = self._texts.get(event["output_index"], "") + event["delta"]


def check_output(name: str, output: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error unless the output of a completed response ends with the answer to its request.

    Interrupted output may precede it if clients have received it.
    """
    expected = answer_to(name)
    messages = [item for item in output if item["type"] == "message"]
    texts = ["".join(part["text"] for part in item["content"]) for item in messages]
    if not texts or texts[-1] != expected or not all(expected.startswith(text) for text in texts):
        raise WrongAnswerError(f"the answers to {name} are {texts}")
    for item in output:
        if item["type"] == "mcp_call" and item["output"] != LOOKED_UP:
            raise UnavailableError(f"the MCP tool failed: {item['error']}")
        if item["type"] == "code_interpreter_call" and item["status"] != "completed":
            raise UnavailableError("the program was not executed")


async def _pause(attempt: int, retry_after: str | None) -> None:
    try:
        asked = float(retry_after or 0)
    except ValueError:
        asked = 0
    if 0 < asked <= _LONGEST_RETRY_AFTER:
        await asyncio.sleep(asked)
    else:
        pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause * (1 - 0.25 * random.random()))


def _pattern(path: str) -> str:
    """Return a path without its ids."""
    return "/".join("…" if "_" in part else part for part in path.partition("?")[0].split("/"))


# -- what teams do -----------------------------------------------------------------------------------------------------


async def ask(load: CheckedLoad, tenant: Tenant) -> None:
    """Ask for JSON."""
    async with load.request("JSON", f"{tenant.thread()}.1") as made:
        response = await load.create(made, tenant)
    tenant.recent = [*tenant.recent[-9:], response["id"]]


async def stream(load: CheckedLoad, tenant: Tenant) -> None:
    """Read a stream."""
    async with load.request("stream", f"{tenant.thread()}.1") as made:
        await load.read_stream(made, tenant, load.body(made, "plain"))


async def paced_stream(load: CheckedLoad, tenant: Tenant) -> None:
    """Read a stream of more than a second."""
    async with load.request("paced stream", f"{tenant.thread()}.1") as made:
        await load.read_stream(made, tenant, load.body(made, "paced"))


async def chained(load: CheckedLoad, tenant: Tenant) -> None:
    """Continue the team's chain, or begin a new one."""
    previous, thread, turn = tenant.chain, tenant.chain_thread, tenant.turns + 1
    if previous is None or turn > _LONGEST_CHAIN:
        previous, thread, turn = None, tenant.thread(), 1
    # After a failure, the history of the next turn would be incomplete.
    tenant.chain = None
    more = {"previous_response_id": previous} if previous else {}
    async with load.request("chain", f"{thread}.{turn}") as made:
        response = await load.create(made, tenant, **more)
    tenant.chain, tenant.chain_thread, tenant.turns = response["id"], thread, turn


async def conversation(load: CheckedLoad, tenant: Tenant) -> None:
    """Continue the team's conversation, one request at a time."""
    async with tenant.lock:
        if tenant.conversation is None or tenant.exchanges >= _LONGEST_CONVERSATION:
            tenant.conversation_thread, tenant.exchanges = tenant.thread(), 0
            async with load.request("new conversation", tenant.conversation_thread) as made:
                found = orjson.loads(await load.call(made, tenant, "POST", "/v1/conversations", {}))
            tenant.conversation = found["id"]
        named, tenant.conversation = tenant.conversation, None
        async with load.request("conversation", f"{tenant.conversation_thread}.{tenant.exchanges + 1}") as made:
            await load.create(made, tenant, conversation=named)
        tenant.conversation, tenant.exchanges = named, tenant.exchanges + 1


async def background(load: CheckedLoad, tenant: Tenant) -> None:
    """Start a background response that calls a tool, and ask for it until it has ended."""
    server = {
        "type": "mcp",
        "server_label": LABEL,
        "server_url": f"{load.mcp_url}/mcp",
        "require_approval": "never",
    }
    async with load.request("background", f"{tenant.thread()}.1") as made:
        response = await load.create(made, tenant, "look", background=True, tools=[server])
        while response["status"] not in TERMINAL:
            await asyncio.sleep(_POLL_SECONDS)
            if time.monotonic() > made.began + 60:
                raise UnavailableError("a background response took more than a minute")
            path = f"/v1/responses/{response['id']}"
            response = load.read(tenant, made, orjson.loads(await load.call(made, tenant, "GET", path)))


async def followed(load: CheckedLoad, tenant: Tenant) -> None:
    """Follow a background response as a stream."""
    async with load.request("followed background", f"{tenant.thread()}.1") as made:
        await load.read_stream(made, tenant, load.body(made, "paced", background=True))


async def cancelled(load: CheckedLoad, tenant: Tenant) -> None:
    """Cancel a background response."""
    async with load.request("cancelled", f"{tenant.thread()}.1") as made:
        response = await load.create(made, tenant, "paced", background=True)
        await asyncio.sleep(0.2)
        path = f"/v1/responses/{response['id']}/cancel"
        ended = load.read(tenant, made, orjson.loads(await load.call(made, tenant, "POST", path)))
        if ended["status"] not in TERMINAL:
            raise WrongAnswerError(f"the cancelled response {response['id']} is {ended['status']}")


async def chat(load: CheckedLoad, tenant: Tenant) -> None:
    """Ask for a chat completion."""
    async with load.request("chat completion", f"{tenant.thread()}.1") as made:
        found = orjson.loads(await load.call(made, tenant, "POST", "/v1/chat/completions", _chat(made)))
        if found["choices"][0]["message"]["content"] != answer_to(made.name):
            raise WrongAnswerError(f"the completion of {made.name} is {found['choices']}")


async def chat_stream(load: CheckedLoad, tenant: Tenant) -> None:
    """Read the stream of a chat completion, which cannot be continued after an interruption."""
    async with load.request("chat stream", f"{tenant.thread()}.1") as made:
        body = {**_chat(made), "stream": True}
        content = (await load.call(made, tenant, "POST", "/v1/chat/completions", body)).split(b"\n")
        if b"data: [DONE]" not in content:
            raise UnavailableError("a chat stream ended too soon")
        chunks = [orjson.loads(line[6:]) for line in content if line.startswith(b"data: {")]
        if any("error" in each for each in chunks):
            raise UnavailableError(f"error in a chat stream: {chunks[-1]}")
        parts = [choice["delta"].get("content") or "" for each in chunks for choice in each["choices"]]
        if "".join(parts) != answer_to(made.name):
            raise WrongAnswerError(f"the chat stream of {made.name} is {parts}")


def _chat(made: Request) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{made.name} plain"}]
    return {"model": "m", "messages": messages, "safety_identifier": made.name}


async def picture(load: CheckedLoad, tenant: Tenant) -> None:
    """Ask about a picture."""
    async with load.request("picture", f"{tenant.thread()}.1") as made:
        parts = [{"type": "input_text", "text": f"{made.name} plain"}, {"type": "input_image", "image_url": PICTURE}]
        await load.create(made, tenant, input=[{"role": "user", "content": parts}])


async def grammar(load: CheckedLoad, tenant: Tenant) -> None:
    """Offer a tool with a grammar."""
    async with load.request("grammar", f"{tenant.thread()}.1") as made:
        await load.create(made, tenant, tools=[GRAMMAR_TOOL])


async def draw(load: CheckedLoad, tenant: Tenant) -> None:
    """Generate an image."""
    async with load.request("image", f"{tenant.thread()}.1") as made:
        body = {"model": "i", "prompt": f"{made.name} Draw.", "user": made.name}
        found = orjson.loads(await load.call(made, tenant, "POST", "/v1/images/generations", body))
        if base64.b64decode(found["data"][0]["b64_json"]).decode() != body["prompt"]:
            raise WrongAnswerError(f"the image of {made.name} is {found['data']}")


async def speak(load: CheckedLoad, tenant: Tenant) -> None:
    """Generate the speech of a text."""
    async with load.request("speech", f"{tenant.thread()}.1") as made:
        body = {"model": "s", "input": f"{made.name} Say.", "voice": "alloy"}
        if await load.call(made, tenant, "POST", "/v1/audio/speech", body) != spoken(body["input"]):
            raise WrongAnswerError(f"the speech of {made.name} differs")


async def transcribe(load: CheckedLoad, tenant: Tenant) -> None:
    """Have audio transcribed; the upstream answers with the prompt."""
    async with load.request("transcription", f"{tenant.thread()}.1") as made:
        prompt = f"{made.name} Write."

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData({"model": "t", "prompt": prompt})
            data.add_field("file", WAV, filename="a.wav", content_type="audio/wav")
            return data

        found = orjson.loads(await load.call(made, tenant, "POST", "/v1/audio/transcriptions", form=form))
        if found["text"] != prompt:
            raise WrongAnswerError(f"the transcript of {made.name} is {found}")


async def run_code(load: CheckedLoad, tenant: Tenant) -> None:
    """Let the model run a program in a container that is removed afterwards."""
    async with load.request("container", f"{tenant.thread()}.1") as made:
        found = orjson.loads(await load.call(made, tenant, "POST", "/v1/containers", {"name": "chaos"}))
        container = found["id"]
        tool = {"type": "code_interpreter", "container": container}
        response = await load.create(made, tenant, "code", tools=[tool], include=["code_interpreter_call.outputs"])
        [call] = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
        logs = "".join(output.get("logs", "") for output in call["outputs"] or ())
        if call["code"] != PROGRAM or logs.strip() != str(SECRET):
            raise UnavailableError(f"the program has printed {logs!r}")
        await load.call(made, tenant, "DELETE", f"/v1/containers/{container}")


async def file(load: CheckedLoad, tenant: Tenant) -> None:
    """Upload a file and read it; every second one is deleted."""
    name = f"{tenant.thread()}.1"
    content = random.Random(name).randbytes(_FILE_BYTES)

    def form() -> aiohttp.FormData:
        data = aiohttp.FormData({"purpose": "user_data"})
        data.add_field("file", content, filename=f"{name}.bin")
        return data

    async with load.request("file", name) as made:
        made_file = orjson.loads(await load.call(made, tenant, "POST", "/v1/files", form=form))
        path = f"/v1/files/{made_file['id']}"
        load.files[tenant.number, made_file["id"]] = content
        if await load.call(made, tenant, "GET", f"{path}/content") != content:
            raise WrongAnswerError(f"the content of {made_file['id']} differs")
        if load.chance(0.5):
            del load.files[tenant.number, made_file["id"]]
            await load.call(made, tenant, "DELETE", path)


async def retrieve(load: CheckedLoad, tenant: Tenant) -> None:
    """Retrieve a recent response."""
    if not tenant.recent:
        return
    response_id = tenant.recent[-1]
    async with load.request("retrieve", response_id) as made:
        found = orjson.loads(await load.call(made, tenant, "GET", f"/v1/responses/{response_id}"))
    if found != load.acknowledged[response_id][1]:
        raise WrongAnswerError(f"{response_id} differs from what its client received")


async def read_foreign(load: CheckedLoad, tenant: Tenant) -> None:
    """Ask for a response of another team."""
    foreign = [other.recent[-1] for other in load.tenants if other is not tenant and other.recent]
    if not foreign:
        return
    response_id = random.choice(foreign)
    async with load.request("another team's response", response_id) as made:
        try:
            await load.call(made, tenant, "GET", f"/v1/responses/{response_id}")
        except UnavailableError as refused:
            if ": 404 " not in str(refused):
                raise
        else:
            raise WrongAnswerError(f"{response_id} was shown to another team")


async def console_page(load: CheckedLoad, tenant: Tenant) -> None:
    """Request a page of the console."""
    path = random.choice(("/admin/", "/admin/responses/response/"))
    async with load.request("console page", path) as made:
        content = await load.call(made, tenant, "GET", path, cookie=load.cookie)
        if b"</html>" not in content:
            raise WrongAnswerError(f"{path} is incomplete")


SHARES: Mapping[Callable[[CheckedLoad, Tenant], Awaitable[None]], float] = {
    ask: 22,
    stream: 22,
    paced_stream: 6,
    chained: 9,
    conversation: 6,
    background: 5,
    followed: 2,
    cancelled: 1,
    chat: 5,
    chat_stream: 5,
    picture: 2,
    grammar: 2,
    draw: 1,
    speak: 1,
    transcribe: 1,
    file: 3,
    retrieve: 9,
    read_foreign: 1,
    console_page: 2,
    run_code: 0.5,
}
"""The actions with their relative frequencies."""


# -- afterwards --------------------------------------------------------------------------------------------------------


def _became_known(final: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Return whether the stored response differs only by the usage, which becomes known after a cancellation."""
    return final["status"] == "cancelled" and final["usage"] is None and {**stored, "usage": None} == final


async def verify(load: CheckedLoad, *, clients: int = 16) -> Counter[str]:
    """Retrieve all acknowledged responses and files, and return how many are lost, different or not ended.

    Examples are appended to `load.wrong`.
    """
    found, waiting = Counter[str](), iter(load.acknowledged.items())
    files = iter(load.files.items())
    by_number = {tenant.number: tenant for tenant in load.tenants}

    async def work() -> None:
        for response_id, (tenant, final) in waiting:
            try:
                made = Request(kind="", name="", began=0.0)
                stored = orjson.loads(await load.call(made, tenant, "GET", f"/v1/responses/{response_id}"))
            except UnavailableError as failed:
                found["lost"] += 1
                load.wrong.append(f"{response_id} is lost: {failed}")
                continue
            if stored["status"] not in TERMINAL:
                found["not ended"] += 1
                load.wrong.append(f"{response_id} is {stored['status']}")
            elif final is not None and stored != final and not _became_known(final, stored):
                found["different"] += 1
                parts = [key for key in stored.keys() | final.keys() if stored.get(key) != final.get(key)]
                values = [(key, final.get(key), stored.get(key)) for key in parts]
                load.wrong.append(f"{response_id} differs: {values}"[:600])
            else:
                found["retrieved"] += 1
        for (number, file_id), content in files:
            try:
                made = Request(kind="", name="", began=0.0)
                same = await load.call(made, by_number[number], "GET", f"/v1/files/{file_id}/content") == content
            except UnavailableError as failed:
                same = False
                load.wrong.append(f"{file_id} is lost: {failed}")
            found["files" if same else "files lost"] += 1

    await asyncio.gather(*(work() for _ in range(clients)))
    return found
