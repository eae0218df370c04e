"""Upstream that bills the maximum that a request allows, and calls of every kind.

Images, files, compressed audio and output without a maximum are not bounded by the size of a request. The upstream
bills the maximum in the model's capabilities for them, or a very large amount if there is none.
"""

import base64
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
from aiohttp import web

from tenants.prices import MILLION, PriceEntry
from tests.support.aiohttp_server import serving
from tests.support.chunks import chunk, usage

OUTPUT, IMAGE, SECONDS = 2_000, 3_000, 60
DECLARED = {"max_output_tokens": OUTPUT, "max_image_tokens": IMAGE, "max_audio_seconds": SECONDS}
"""Capabilities of a model whose calls all have a maximum."""
_FORTUNE = 1_000_000
_TOKENS_PER_SECOND = 50
PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
SILENCE = b"OggS" + bytes(4_000)
"""Compressed audio, which may be ten hours of silence."""
TIMED = "seconds "
"""Beginning of a prompt whose transcription is billed by its time."""
PRICES = [
    PriceEntry(dimension=dimension, amount=Decimal(amount), per=per)
    for dimension, amount, per in (
        ("input", "2", MILLION),
        ("output", "8", MILLION),
        ("audio_input", "40", MILLION),
        ("audio_output", "80", MILLION),
        ("image_input", "10", MILLION),
        ("image_output", "40", MILLION),
        ("audio_second", "0.0001", 1),
        ("character", "15", MILLION),
        ("call", "0.001", 1),
    )
]
"""Prices of everything that a call can be billed."""


def wav(size: int, *, rate: int = 8_000, claims: int | None = None) -> bytes:
    """Return audio of 8 bits with a number of samples. `claims`: the number that its header has instead."""
    count = size if claims is None else claims
    header = struct.pack("<HHIIHH", 1, 1, rate, rate, 1, 8)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + count)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + header
        + (b"data" + struct.pack("<I", count) + bytes(size))
    )


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The upstream's own maximum bill of a request. `declared`: the model has the capabilities above."""

    declared: bool

    def usage(self, path: str, body: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
        """Return the usage of a request."""
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        answers = int(body.get("n") or 1)
        read = _Read()
        read.add(body.get("messages") or body.get("input") or body.get("prompt"))
        image = IMAGE if self.declared else _FORTUNE
        most = OUTPUT if self.declared else _FORTUNE
        seconds = sum(self.seconds(content) for content in [*read.audio, *(files.values() if "audio" in path else ())])
        images = len(read.images) + (len(files) if "images" in path else 0)
        heard, seen = int(seconds * _TOKENS_PER_SECOND), images * image
        written, details = 0, {}
        if "completions" in path:
            written = (limit or (16 if "chat" not in path else most)) * max(answers, int(body.get("best_of") or 1))
        elif "images" in path:
            written = most * answers * (1 + int(body.get("partial_images") or 0))
        elif "audio" in path:
            written = most
            details = {"audio_tokens": written} if "speech" in path else {}
        return {
            "prompt_tokens": read.text + heard + seen,
            "completion_tokens": written,
            "total_tokens": read.text + heard + seen + written,
            "prompt_tokens_details": {"audio_tokens": heard, "image_tokens": seen},
            "completion_tokens_details": details,
        }

    def seconds(self, content: bytes) -> float:
        """Return the length of audio."""
        if content.startswith(b"RIFF"):
            return (len(content) - 44) / 8_000
        return SECONDS if self.declared else 36_000


class _Read:
    """Texts, images and audio of a request: a token for each byte of text."""

    def __init__(self) -> None:
        self.text = 0
        self.images: list[str] = []
        self.audio: list[bytes] = []

    def add(self, value: Any) -> None:
        match value:
            case str():
                self.text += len(value.encode())
            case int():
                self.text += 1
            case list():
                for part in value:
                    self.add(part)
            case {"type": "image_url", "image_url": {"url": url}}:
                self.images.append(url)
            case {"type": "input_audio", "input_audio": {"data": data}}:
                self.audio.append(base64.b64decode(data))
            case {"type": "text", "text": text}:
                self.add(text)
            case {"content": content}:
                self.add(content)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Bill of one request: its usage, or the seconds of audio instead, and the number of generated images."""

    path: str
    usage: dict[str, Any]
    seconds: float | None = None
    images: int = 0

    @property
    def cost(self) -> Decimal:
        """Return its cost in dollars at the list prices."""
        calls = _LIST["call"] * (self.images or 1)
        if self.seconds is not None:
            return calls + Decimal(self.seconds) * _LIST["audio_second"]
        read, written = int(self.usage["prompt_tokens"]), int(self.usage["completion_tokens"])
        details = self.usage["prompt_tokens_details"]
        heard, seen = int(details["audio_tokens"]), int(details["image_tokens"])
        kind = "image_output" if "images" in self.path else "audio_output" if "speech" in self.path else "output"
        return (
            calls
            + (read - heard - seen) * _LIST["input"]
            + heard * _LIST["audio_input"]
            + seen * _LIST["image_input"]
            + written * _LIST[kind]
        )


_LIST = {price.dimension: price.amount / price.per for price in PRICES}


@contextmanager
def billing_upstream(*, declared: bool) -> Iterator[tuple[str, list[Bill]]]:
    """Run the server. Yield its base URL and the bill of each request that it has answered."""
    billed: list[Bill] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body, files = await _read_request(request)
        maximum = Maximum(declared=declared)
        spent = maximum.usage(request.path, body, files)
        images = int(body.get("n") or 1) if "images" in request.path else 0
        # Some servers bill the tokens of audio, others its time.
        is_timed = "audio" in request.path and str(body.get("prompt")).startswith(TIMED)
        seconds = sum(map(maximum.seconds, files.values())) if is_timed else None
        bill = Bill(path=request.path, usage=spent, seconds=seconds, images=images)
        billed.append(bill)
        if request.path.endswith("/chat/completions") and body.get("stream"):
            chunks = [chunk(role="assistant", content="Hello"), chunk(finish="stop"), usage(**spent)]
            return _events([*map(orjson.dumps, chunks), b"[DONE]"])
        if request.path.endswith("/speech"):
            return _events([orjson.dumps({"type": "speech.audio.done", "usage": _named(spent)})])
        return web.json_response(_answer(bill, body))

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/{path:.*}", answer)
    with serving(app) as url:
        yield url, billed


async def _read_request(request: web.Request) -> tuple[dict[str, Any], dict[str, bytes]]:
    if request.content_type != "multipart/form-data":
        return orjson.loads(await request.read()), {}
    body: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for number, (name, value) in enumerate((await request.post()).items()):
        if isinstance(value, web.FileField):
            files[f"{name}{number}"] = value.file.read()
        else:
            body[name] = value
    return body, files


def _events(contents: list[bytes]) -> web.Response:
    lines = b"".join(b"data: " + content + b"\n\n" for content in contents)
    return web.Response(body=lines, content_type="text/event-stream")


def _named(spent: dict[str, Any]) -> dict[str, Any]:
    """Return the usage with the field names of the endpoints of images and audio."""
    return {
        "input_tokens": spent["prompt_tokens"],
        "output_tokens": spent["completion_tokens"],
        "input_tokens_details": spent["prompt_tokens_details"],
    }


def _answer(bill: Bill, body: dict[str, Any]) -> dict[str, Any]:
    path, spent = bill.path, bill.usage
    if "images" in path:
        picture = {"b64_json": base64.b64encode(PNG).decode()}
        return {"created": 1, "data": [picture] * int(body.get("n") or 1), "usage": _named(spent)}
    if bill.seconds is not None:
        return {"text": "Hello", "usage": {"type": "duration", "seconds": bill.seconds}}
    if "audio" in path:
        return {"text": "Hello", "usage": {"type": "tokens", **_named(spent)}}
    if path.endswith("/embeddings"):
        vector = {"object": "embedding", "index": 0, "embedding": [1.0]}
        return {"object": "list", "data": [vector], "model": body["model"], "usage": spent}
    if path.endswith("/moderations"):
        return {"id": "modr-1", "model": body["model"], "results": [], "usage": spent}
    is_chat = path.endswith("/chat/completions")
    said = {"message": {"role": "assistant", "content": "Hello"}} if is_chat else {"text": "Hello"}
    return {
        "id": "cmpl-1",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, **said}],
        "usage": spent,
    }


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request: its path, and a body or the fields and the files of a form."""

    path: str
    body: dict[str, Any]
    files: tuple[tuple[str, bytes], ...] = ()


def random_call(chosen: random.Random, model: str) -> Call:
    """Return a call of any kind."""
    words = "word é " * chosen.randrange(1, 60)
    return chosen.choice(
        [_chat, _responses, _messages, _completion, _embedding, _moderation, _image, _edit, _speech, _transcription]
    )(chosen, model, words)


def _chat(chosen: random.Random, model: str, words: str) -> Call:
    content: list[dict[str, Any]] = [{"type": "text", "text": words}]
    content += [{"type": "image_url", "image_url": {"url": PNG_URL}}] * chosen.choice([0, 0, 1, 3])
    if chosen.random() < 0.4:
        audio, form = chosen.choice([(wav(chosen.randrange(40_000)), "wav"), (SILENCE, "mp3")])
        data = base64.b64encode(audio).decode()
        content.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
    if chosen.random() < 0.5:
        body["n"] = chosen.choice([1, 2, 8, 128])
    if chosen.random() < 0.5:
        body[chosen.choice(["max_tokens", "max_completion_tokens"])] = chosen.choice([1, 16, 300])
    body["stream"] = chosen.random() < 0.3
    return Call(path="/chat/completions", body=body)


def _responses(chosen: random.Random, model: str, words: str) -> Call:
    content: list[dict[str, Any]] = [{"type": "input_text", "text": chosen.choice(["", "data:"]) + words}]
    content += [{"type": "input_image", "image_url": PNG_URL, "detail": "low"}] * chosen.choice([0, 0, 1, 3])
    body: dict[str, Any] = {"model": model, "input": [{"role": "user", "content": content}]}
    if chosen.random() < 0.5:
        body["max_output_tokens"] = chosen.choice([16, 300])
    return Call(path="/responses", body=body)


def _messages(chosen: random.Random, model: str, words: str) -> Call:
    body = {"model": model, "max_tokens": chosen.choice([16, 300]), "messages": [{"role": "user", "content": words}]}
    return Call(path="/messages", body=body)


def _completion(chosen: random.Random, model: str, words: str) -> Call:
    body: dict[str, Any] = {"model": model, "prompt": chosen.choice([words, [words, words]])}
    if chosen.random() < 0.5:
        body["max_tokens"] = chosen.choice([1, 200])
    return Call(path="/completions", body=body)


def _embedding(chosen: random.Random, model: str, words: str) -> Call:
    return Call(path="/embeddings", body={"model": model, "input": chosen.choice([words, [1] * len(words)])})


def _moderation(chosen: random.Random, model: str, words: str) -> Call:
    parts: list[dict[str, Any]] = [{"type": "text", "text": words}]
    parts += [{"type": "image_url", "image_url": {"url": PNG_URL}}] * chosen.choice([0, 1])
    return Call(path="/moderations", body={"model": model, "input": parts})


def _image(chosen: random.Random, model: str, words: str) -> Call:
    return Call(path="/images/generations", body={"model": model, "prompt": words, "n": chosen.choice([1, 4])})


def _edit(chosen: random.Random, model: str, words: str) -> Call:
    files = (("image[]", PNG),) * chosen.choice([1, 2])
    return Call(path="/images/edits", body={"model": model, "prompt": words}, files=files)


def _speech(chosen: random.Random, model: str, words: str) -> Call:
    speed = chosen.choice([0.25, 1])
    body = {"model": model, "input": words, "voice": "alloy", "speed": speed, "stream_format": "sse"}
    return Call(path="/audio/speech", body=body)


def _transcription(chosen: random.Random, model: str, words: str) -> Call:
    path = chosen.choice(["/audio/transcriptions", "/audio/translations"])
    content = chosen.choice([SILENCE, wav(chosen.randrange(40_000), claims=1)])
    prompt = chosen.choice(["", TIMED]) + words
    return Call(path=path, body={"model": model, "prompt": prompt}, files=(("file", content),))
