"""Legacy completions: the text that a chat with the prompt as its only message would get."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from demo_upstream import tokens
from demo_upstream.answer import Answer
from demo_upstream.models import DemoModel
from demo_upstream.request import CompletionRequest, parse_chat

_DEFAULT_TOKENS = 16


def body(request: CompletionRequest, model: DemoModel, *, created: int) -> dict[str, Any]:
    """Return the completion of every prompt."""
    completed = [_complete(request, prompt, model) for prompt in request.prompt]
    choices = [_choice(index, "".join(words), reason) for index, (words, reason) in enumerate(completed)]
    return {**_head(request, created), "choices": choices, "usage": _usage(request, [words for words, _ in completed])}


def chunks(request: CompletionRequest, model: DemoModel, *, created: int) -> Iterator[dict[str, Any]]:
    """Yield the completions word by word, one prompt after the other."""
    head, written = _head(request, created), []
    for index, prompt in enumerate(request.prompt):
        words, reason = _complete(request, prompt, model)
        written.append(words)
        for word in words:
            yield {**head, "choices": [_choice(index, word, None)]}
        yield {**head, "choices": [_choice(index, "", reason)]}
    if request.stream_options is not None and request.stream_options.include_usage:
        yield {**head, "choices": [], "usage": _usage(request, written)}


def _complete(request: CompletionRequest, prompt: str, model: DemoModel) -> tuple[list[str], str]:
    chat = {
        "model": request.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": request.max_tokens or _DEFAULT_TOKENS,
        **({"stop": request.stop} if request.stop else {}),
    }
    answer = Answer(parse_chat(orjson.dumps(chat)), model)
    choice = answer.completion()["choices"][0]
    words = tokens.split(choice["message"]["content"] or choice["message"]["refusal"] or "")
    return ([*tokens.split(prompt), *words] if request.echo else words), choice["finish_reason"]


def _head(request: CompletionRequest, created: int) -> dict[str, Any]:
    identity = blake2b(orjson.dumps([request.model, request.prompt]), digest_size=12).hexdigest()
    return {"id": f"cmpl-{identity}", "object": "text_completion", "created": created, "model": request.model}


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _usage(request: CompletionRequest, written: list[list[str]]) -> dict[str, int]:
    read, generated = sum(map(tokens.count, request.prompt)), sum(map(len, written))
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}
