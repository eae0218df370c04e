"""Token estimates, at four characters per token, for upstreams that do not report tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from conversations.items import Reasoning, StoredItem, image_details, plain_text
from engine.attachments import Attachments
from engine.turn import Sampling, TurnRequest

CHARACTERS_PER_TOKEN = 4
# Costs of a 1024 × 1024 image in OpenAI's GPT-4o models. The real size is unknown here, because images are not decoded.
_TOKENS_OF_AN_IMAGE = 765
_TOKENS_OF_A_SMALL_IMAGE = 85
# Tokens that a chat template adds to the whole conversation.
_TEMPLATE_TOKENS = 64


def tokens(*texts: str) -> int:
    """Return the estimated sum of the tokens of the texts, rounded up."""
    return -(-sum(map(len, texts)) // CHARACTERS_PER_TOKEN)


def tool_output(output: Iterable[Mapping[str, Any]]) -> int:
    """Return the estimated tokens of the results of hosted tools in an output."""
    return tokens(*(text for item in output for text in _tool_output_texts(item)))


def _tool_output_texts(item: Mapping[str, Any]) -> list[str]:
    match item["type"]:
        case "mcp_call":
            return [item.get("output") or ""]
        case "code_interpreter_call":
            return [output.get("logs") or "" for output in item.get("outputs") or ()]
        case "shell_call_output":
            return [output["stdout"] + output["stderr"] for output in item["output"]]
        case "file_search_call" | "web_search_call":
            return [result.get("text") or "" for result in item.get("results") or ()]
    return []


def input_tokens(
    *, instructions: str | None, items: Sequence[StoredItem], sampling: Sampling, attachments: Attachments | None = None
) -> int:
    """Return the estimated input tokens of a turn: texts, images, tool definitions and the response format.

    Files count only if `attachments` has loaded their texts.
    """
    # Reasoning does not count: most models do not get earlier reasoning back.
    bodies = [item.wire() for item in items if not isinstance(item, Reasoning)]
    texts = [text for body in bodies for text in (body.get("name") or "", plain_text(body))]
    images = sum(
        _TOKENS_OF_A_SMALL_IMAGE if detail == "low" else _TOKENS_OF_AN_IMAGE
        for body in bodies
        for detail in image_details(body)
    )
    files = attachments.file_texts(items) if attachments else ()
    return tokens(instructions or "", *texts, *files, *_definitions(sampling)) + images


def most_text_tokens(request: TurnRequest) -> int:
    """Return the maximum tokens of a request's texts outside of its items: each token has at least one byte."""
    files = request.attachments.file_texts(request.items) if request.attachments else ()
    grammars = [tool.grammar.definition for tool in request.sampling.tools if tool.grammar is not None]
    texts = [request.instructions or "", *files, *grammars, *_definitions(request.sampling)]
    return sum(len(text.encode(errors="replace")) for text in texts) + _TEMPLATE_TOKENS


def _definitions(sampling: Sampling) -> list[str]:
    described = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in sampling.tools
    ]
    known = [{name: value for name, value in tool.items() if value is not None} for tool in described]
    if sampling.response_format is not None:
        known.append(sampling.response_format)
    return [orjson.dumps(definition).decode() for definition in known]
