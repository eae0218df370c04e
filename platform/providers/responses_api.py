"""Body of a request to a Responses upstream.

The upstream is asked to store nothing: the platform itself stores responses and items, under its own ids.
"""

from typing import Any

from engine.attachments import AttachmentMap
from engine.turn import TurnRequest
from providers.parameters import common_parameters, filled, tool_parameters
from providers.responses_input import InputWriter
from tenants.directory import Route

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


def request_body(route: Route, request: TurnRequest, attachments: AttachmentMap) -> dict[str, Any]:
    """Return the body of the upstream request. Parameters that the client did not send are omitted."""
    sampling, chat_format = request.sampling, request.sampling.response_format
    # Chat completions nest the fields of a format, a tool and a choice under the type; the Responses API does not.
    if chat_format is not None and chat_format["type"] == "json_schema":
        chat_format = {"type": "json_schema", **chat_format["json_schema"]}
    tools: dict[str, Any] = {}
    if sampling.tools:
        tools = tool_parameters(sampling, route.capabilities)
        tools["tools"] = [_tool(tool) for tool in tools["tools"]]
        if isinstance(choice := tools.get("tool_choice"), dict):
            tools["tool_choice"] = {"type": choice["type"], **choice[choice["type"]]}
    return {
        "model": request.model,
        "input": InputWriter(route, request, attachments).write(request.items),
        "stream": request.streamed,
        # The upstream stores nothing, so its reasoning is only available to later turns in encrypted form.
        "store": False,
        "include": [_ENCRYPTED, _LOGPROBS] if sampling.logprobs else [_ENCRYPTED],
        **({"instructions": request.instructions} if request.instructions else {}),
        **tools,
        **filled(
            max_output_tokens=sampling.max_output_tokens,
            top_logprobs=sampling.top_logprobs,
            reasoning=filled(effort=sampling.reasoning_effort, summary=sampling.reasoning_summary) or None,
            text=filled(format=chat_format, verbosity=sampling.verbosity) or None,
            **common_parameters(sampling),
        ),
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] == "function":
        # Both fields are required in the Responses API, unlike in chat completions.
        return {"type": "function", "parameters": None, "strict": None, **tool["function"]}
    custom = {"type": "custom", **tool["custom"]}
    if "format" in custom:
        custom["format"] = {"type": "grammar", **custom["format"]["grammar"]}
    return custom
