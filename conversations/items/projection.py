"""Projection of stored items: long and rarely used fields are stored, but shown only on request (`include`)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Literal, get_args

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""Values of `include`. Encrypted content and log probabilities are not filtered: they are shown wherever stored."""
INCLUDABLE: tuple[Includable, ...] = get_args(Includable)

UPSTREAM_CALL_ID = "upstream_call_id"
"""Key of a stored hosted call that has the upstream's id of the call. It is never shown."""
Body = dict[str, Any]


def project(body: Body, include: AbstractSet[str]) -> Body:
    """Return the item as shown to a client that asked for `include`: the same object if nothing is left out."""
    body = _less(body, UPSTREAM_CALL_ID)
    projection = _PROJECTIONS.get(body["type"])
    return body if projection is None else projection(body, include)


def _without(name: str, key: str) -> Callable[[Body, AbstractSet[str]], Body]:
    def shown(body: Body, include: AbstractSet[str]) -> Body:
        return body if name in include else {**body, key: None}

    return shown


def _web_search(body: Body, include: AbstractSet[str]) -> Body:
    # Clients that ask for the results get the sources, too.
    if "web_search_call.results" in include:
        return body
    # `results` is removed and not set to null, as OpenAI's schema of this item has no such key.
    shown = _less(body, "results")
    if "web_search_call.action.sources" in include or "sources" not in body["action"]:
        return shown
    return {**shown, "action": _less(body["action"], "sources")}


def _program(body: Body, include: AbstractSet[str]) -> Body:
    shown = _less(body, "files")
    return shown if "code_interpreter_call.outputs" in include else {**shown, "outputs": None}


def _less(body: Body, key: str) -> Body:
    return {name: value for name, value in body.items() if name != key} if key in body else body


def _images_in(key: str) -> Callable[[Body, AbstractSet[str]], Body]:
    # Only data URLs are left out. Other URLs are short, and clients need them to identify the image.

    def shown(body: Body, include: AbstractSet[str]) -> Body:
        parts = body[key]
        if "message.input_image.image_url" in include or not isinstance(parts, list):
            return body
        if not any(_has_bytes(part) for part in parts):
            return body
        return {**body, key: [{**part, "image_url": None} if _has_bytes(part) else part for part in parts]}

    return shown


def _screenshot(body: Body, include: AbstractSet[str]) -> Body:
    if "computer_call_output.output.image_url" in include or not _has_bytes(body["output"]):
        return body
    # Types of clients allow null in images of messages, but not here.
    return {**body, "output": {name: value for name, value in body["output"].items() if name != "image_url"}}


def _has_bytes(image: Body) -> bool:
    return (image.get("image_url") or "").startswith("data:")


_PROJECTIONS: dict[str, Callable[[Body, AbstractSet[str]], Body]] = {
    "message": _images_in("content"),
    "function_call_output": _images_in("output"),
    "custom_tool_call_output": _images_in("output"),
    "computer_call_output": _screenshot,
    "file_search_call": _without("file_search_call.results", "results"),
    "web_search_call": _web_search,
    "code_interpreter_call": _program,
    "shell_call_output": lambda body, _: _less(body, "files"),
    "tool_search_call": lambda body, _: _less(body, "query"),
}
