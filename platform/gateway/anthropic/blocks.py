"""Messages and their content blocks as the input items of a response."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

import orjson

from core.errors import BadRequest, InvalidValue
from gateway.anthropic.schema import (
    Base64Source,
    ContentSource,
    DocumentBlock,
    FileSource,
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    ServerToolUseBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
    WebFetchResultBlock,
    WebSearchResultBlock,
)

Body = dict[str, Any]
SEARCH_PREFIX = "ws_"
"""Prefix of the ids of this server's own web searches."""
_NO_PREFILL = "This server does not support assistant message prefill. The conversation must end with a user message."
_MAX_FILENAME = 255
# Fields of this API's parts that correspond to the `source` of Anthropic's blocks.
_SOURCES = re.compile(r"\.(image_url|file_data|file_url|file_id|detail)\b")
_PLACE = re.compile(r"input\[\d+\](?:\.(?:content|output)\[\d+\])?")


class InputWriter:
    """Writer of items. `items` are the items written so far, as JSON of the Responses API."""

    def __init__(self) -> None:
        self.items: list[Body] = []
        # The path of the block that an item or part came from, for error messages.
        self._paths: dict[str, str] = {}
        self._results: dict[str, Body] = {}

    def write(self, messages: Sequence[Message]) -> None:
        """Append the items of a conversation. Raises `BadRequest` for blocks that are not allowed for their role."""
        if messages[-1].role == "assistant":
            raise BadRequest(_NO_PREFILL, param=f"messages[{len(messages) - 1}].role")
        for index, message in enumerate(messages):
            content, path = message.content, f"messages[{index}].content"
            if isinstance(content, str):
                self._open(message.role, path)
                self._add_part({"type": _text_type(message.role), "text": content}, path)
                continue
            is_open = False
            for place, block in enumerate(content):
                where = f"{path}[{place}]"
                parts = self._message_parts(block, message.role, where)
                if parts is None:
                    is_open = False
                    self._add_item(block, message.role, where)
                    continue
                for part in parts:
                    if not is_open:
                        self._open(message.role, path)
                        is_open = True
                    self._add_part(part, where)

    def locate(self, error: BadRequest) -> None:
        """Replace paths of items in an error by the paths of the request's blocks."""

        def replaced(text: str) -> str:
            return _SOURCES.sub(".source", _PLACE.sub(lambda found: self._path(found[0]), text))

        if error.param is not None and error.param.startswith("input"):
            error.message = replaced(error.message)
            error.param = "messages" if error.param == "input" else replaced(error.param)

    def _path(self, place: str) -> str:
        return self._paths.get(place) or self._paths.get(place.partition(".")[0]) or "messages"

    def _open(self, role: str, path: str) -> None:
        self._paths[f"input[{len(self.items)}]"] = path
        self.items.append({"type": "message", "role": role, "content": []})

    def _add_part(self, part: Body, path: str) -> None:
        parts = self.items[-1]["content"]
        self._paths[f"input[{len(self.items) - 1}].content[{len(parts)}]"] = path
        parts.append(part)

    def _message_parts(self, block: Any, role: str, where: str) -> Iterable[Body] | None:
        """Return the parts of a block that is part of a message; None for a block that is an item of its own."""
        match block:
            case TextBlock():
                # Models reject empty texts, which some clients send.
                return [{"type": _text_type(role), "text": block.text}] if block.text else []
            case ImageBlock() | DocumentBlock() | SearchResultBlock():
                _require("user", block, role, where)
                return list(_parts(block))
        return None

    def _add_item(self, block: Any, role: str, where: str) -> None:
        _require("user" if isinstance(block, ToolResultBlock) else "assistant", block, role, where)
        place = f"input[{len(self.items)}]"
        match block:
            case ToolResultBlock():
                output, paths = _output(block, where)
                self._paths |= {f"{place}.output[{index}]": path for index, path in enumerate(paths)}
                self._append({"type": "function_call_output", "call_id": block.tool_use_id, "output": output}, where)
            case ToolUseBlock():
                call = {"call_id": block.id, "name": block.name, "arguments": orjson.dumps(block.input).decode()}
                self._append({"type": "function_call", **call}, where)
            case ThinkingBlock():
                reasoning: Body = {"type": "reasoning", "summary": []}
                if block.thinking:
                    reasoning["content"] = [{"type": "reasoning_text", "text": block.thinking}]
                if block.signature:
                    reasoning["encrypted_content"] = block.signature
                self._append(reasoning, where)
            case RedactedThinkingBlock():
                self._append({"type": "reasoning", "summary": [], "encrypted_content": block.data}, where)
            case ServerToolUseBlock():
                action = _web_action(block)
                search = {"type": "web_search_call", "id": block.id, "status": "completed", "action": action}
                self._results[block.id] = search
                self._append(search, where)
            case WebSearchResultBlock() | WebFetchResultBlock():
                if (searched := self._results.get(block.tool_use_id)) is None:
                    message = f"No `server_tool_use` block with the id '{block.tool_use_id}' precedes this result."
                    raise InvalidValue(message, param=f"{where}.tool_use_id")
                found = block.content
                if isinstance(found, dict) and "error_code" in found:
                    searched["status"] = "failed"
                    searched["results"] = [{"url": "", "text": str(found["error_code"])}]
                elif isinstance(block, WebFetchResultBlock):
                    searched["results"] = [_fetched(found)]
                else:
                    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
                    searched["results"] = [_found(entry, block.tool_use_id) for entry in entries]

    def _append(self, item: Body, where: str) -> None:
        self._paths[f"input[{len(self.items)}]"] = where
        self.items.append(item)


def _text_type(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def _require(needed: str, block: Any, role: str, where: str) -> None:
    if role != needed:
        message = f"Blocks of type '{block.type}' are not allowed in messages of the role '{role}'."
        raise InvalidValue(message, param=where)


def _parts(block: ResultBlock) -> Iterator[Body]:
    match block:
        case TextBlock():
            yield {"type": "input_text", "text": block.text}
        case ImageBlock():
            yield _image(block)
        case SearchResultBlock():
            texts = [block.title, block.source, *(part.text for part in block.content)]
            yield {"type": "input_text", "text": "\n".join(texts)}
        case DocumentBlock():
            yield from _document(block)
        case never:
            assert_never(never)


def _image(block: ImageBlock) -> Body:
    match block.source:
        case Base64Source(media_type=kind, data=data):
            return {"type": "input_image", "image_url": f"data:{kind};base64,{data}"}
        case UrlSource(url=url):
            return {"type": "input_image", "image_url": url}
        case FileSource(file_id=file_id):
            return {"type": "input_image", "file_id": file_id}
        case never:
            assert_never(never)


def _document(block: DocumentBlock) -> Iterator[Body]:
    heading = "\n".join(text for text in (block.title, block.context) if text)
    if heading:
        yield {"type": "input_text", "text": heading}
    name = (block.title or "document")[: _MAX_FILENAME - 4]
    match block.source:
        case TextSource(data=text):
            yield {"type": "input_text", "text": text}
        case ContentSource(content=str(text)):
            yield {"type": "input_text", "text": text}
        case ContentSource(content=list(blocks)):
            for inner in blocks:
                yield from _parts(inner)
        case Base64Source(media_type=kind, data=data):
            # The name gets the extension of the type, which decides how a document is read.
            filename = name if kind != "application/pdf" or name.endswith(".pdf") else f"{name}.pdf"
            yield {"type": "input_file", "file_data": f"data:{kind};base64,{data}", "filename": filename}
        case UrlSource(url=url):
            yield {"type": "input_file", "file_url": url}
        case FileSource(file_id=file_id):
            yield {"type": "input_file", "file_id": file_id}


def _output(block: ToolResultBlock, where: str) -> tuple[str | list[Body], list[str]]:
    """Return the output of a tool call, and the paths of its parts."""
    if not isinstance(block.content, list):
        text = block.content or ""
        return (f"Error: {text}" if block.is_error else text), []
    parts: list[Body] = [{"type": "input_text", "text": "Error:"}] if block.is_error else []
    paths = [where] * len(parts)
    for index, inner in enumerate(block.content):
        for part in _parts(inner):
            parts.append(part)
            paths.append(f"{where}.content[{index}]")
    return parts, paths


def _web_action(block: ServerToolUseBlock) -> Body:
    given: Mapping[str, Any] = block.input
    url, pattern, query = (str(given.get(name) or "") for name in ("url", "pattern", "query"))
    if block.name == "web_fetch":
        if pattern:
            return {"type": "find_in_page", "url": url, "pattern": pattern}
        return {"type": "open_page", "url": url}
    return {"type": "search", "query": query, "queries": [query]}


def _found(result: Mapping[str, Any], call_id: str) -> Body:
    # Results of another server are encrypted with a key that only that server has.
    text = str(result.get("encrypted_content") or "") if call_id.startswith(SEARCH_PREFIX) else ""
    return {"url": str(result.get("url") or ""), "title": str(result.get("title") or ""), "text": text}


def _fetched(result: Any) -> Body:
    page = result if isinstance(result, dict) else {}
    document = page.get("content")
    source = document.get("source") if isinstance(document, dict) else None
    text = source.get("data") if isinstance(source, dict) and source.get("type") == "text" else None
    return {"url": str(page.get("url") or ""), "text": text if isinstance(text, str) else ""}
