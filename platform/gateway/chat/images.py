"""Images of a chat completion: downloaded here and sent as data URLs, so that no upstream fetches a client's URL."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gateway.chat.requests import ChatRequest
from responses.requests.attachments import load_image_urls
from tenants.capabilities import Capabilities

_KEY = "image_url"


async def with_loaded_images(request: ChatRequest, *, team_id: str, can: Capabilities) -> ChatRequest:
    """Return the request with its images as data URLs. Raises the API error of the first image that is invalid."""
    messages = request.values["messages"]
    urls = [entry for index, message in enumerate(messages) for entry in _urls(message, f"messages[{index}]")]
    if not urls:
        return request
    loaded = await load_image_urls(urls, team_id=team_id, can=can)
    return replace(request, values={**request.values, "messages": _replaced(messages, loaded.__getitem__)})


def _urls(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the URLs of all images in a JSON value, each with its path.

    Messages of the assistant may have images in fields that only their upstream knows, so every object is searched.
    """
    match value:
        case list():
            for index, entry in enumerate(value):
                yield from _urls(entry, f"{path}[{index}]")
        case dict():
            for name, entry in value.items():
                where = f"{path}.{name}"
                if name == _KEY and isinstance(entry, str):
                    yield where, entry
                elif name == _KEY and isinstance(entry, dict) and isinstance(entry.get("url"), str):
                    yield f"{where}.url", entry["url"]
                else:
                    yield from _urls(entry, where)


def _replaced(value: Any, load: Callable[[str], str]) -> Any:
    match value:
        case list():
            return [_replaced(entry, load) for entry in value]
        case dict():
            return {
                name: _image(entry, load) if name == _KEY else _replaced(entry, load) for name, entry in value.items()
            }
    return value


def _image(value: Any, load: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return load(value)
    if isinstance(value, dict) and isinstance(value.get("url"), str):
        return {**value, "url": load(value["url"])}
    return _replaced(value, load)
