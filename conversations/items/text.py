"""Plain text of items, for previews, search and token estimates."""

from collections.abc import Callable
from typing import Any

import orjson

Body = dict[str, Any]


def plain_text(body: Body) -> str:
    """Return the text of an item; empty if it has none."""
    return _EXTRACTORS.get(body.get("type", "message"), _content)(body)


def image_details(body: Body) -> list[str]:
    """Return the `detail` of each image that a model sees in an item."""
    if body.get("type") == "image_generation_call":
        return ["auto"] if body.get("result") else []
    content = body.get("content") or body.get("output")
    if isinstance(content, dict):
        return ["original"] if content.get("type") == "computer_screenshot" else []
    if not isinstance(content, list):
        return []
    return [part.get("detail") or "auto" for part in content if part.get("type") == "input_image"]


def _content(body: Body) -> str:
    # The key depends on the type of item, and its value is a string or a list of parts.
    content = body.get("content") or body.get("summary") or body.get("output") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _keys(*names: str) -> Callable[[Body], str]:
    """Return an extractor that joins the values of these keys by newlines; values other than strings as JSON."""

    def extract(body: Body) -> str:
        values = (body.get(name) for name in names)
        texts = (value if isinstance(value, str) else orjson.dumps(value).decode() for value in values if value)
        return "\n".join(texts)

    return extract


def _lines(texts: list[str | None]) -> str:
    return "\n".join(text for text in texts if text)


def _web_search(body: Body) -> str:
    action = body["action"]
    queries = action.get("queries") or ([action["query"]] if action.get("query") else [])
    return _lines([*queries, action.get("pattern"), action.get("url")])


_EXTRACTORS: dict[str, Callable[[Body], str]] = {
    "function_call": _keys("arguments"),
    "custom_tool_call": _keys("input"),
    "computer_call": _keys("action", "actions"),
    "computer_call_output": lambda _: "",
    "shell_call": lambda body: _lines(body["action"]["commands"]),
    "shell_call_output": lambda body: _lines(
        [text for command in body["output"] for text in (command["stdout"], command["stderr"])]
    ),
    "local_shell_call": lambda body: " ".join(body["action"]["command"]),
    "apply_patch_call": lambda body: _lines([body["operation"]["path"], body["operation"].get("diff")]),
    "tool_search_call": _keys("arguments"),
    "tool_search_output": _keys("tools"),
    "additional_tools": _keys("tools"),
    "mcp_list_tools": _keys("tools", "error"),
    "mcp_call": _keys("arguments", "output", "error"),
    "mcp_approval_request": _keys("arguments"),
    "mcp_approval_response": _keys("reason"),
    "file_search_call": lambda body: _lines(
        [*body["queries"], *(result.get("text") for result in body.get("results") or ())]
    ),
    "web_search_call": _web_search,
    "code_interpreter_call": lambda body: _lines(
        [body.get("code"), *(output.get("logs") for output in body.get("outputs") or ())]
    ),
    "image_generation_call": _keys("revised_prompt"),
    "program": _keys("code"),
    "program_output": _keys("result"),
    "compaction": lambda _: "",
    "configuration_update": _keys("reasoning", "text"),
}
