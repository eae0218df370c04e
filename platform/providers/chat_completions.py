"""Body of a request to a chat-completions upstream."""

from typing import Any

from engine.attachments import AttachmentMap
from engine.turn import TurnRequest
from providers.chat_messages import CallExtras, MessageFormat, ReasoningWriter, messages
from providers.chat_parts import PartWriter
from providers.dialects import dialect_of, with_prefix
from providers.parameters import common_parameters, filled, tool_parameters
from tenants.directory import Route


def request_body(route: Route, request: TurnRequest, attachments: AttachmentMap) -> dict[str, Any]:
    """Return the body of the upstream request. Parameters that the client did not send are omitted."""
    can, sampling, dialect = route.capabilities, request.sampling, dialect_of(route)
    reasoning = None
    if dialect.reasoning_field:
        reasoning = ReasoningWriter(
            dialect, cipher=request.cipher, items=request.items, context=sampling.reasoning_context
        )
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages(
            request.instructions,
            request.items,
            parts=PartWriter(attachments=attachments, vision=can.vision),
            reasoning=reasoning,
            extras=CallExtras(request.cipher, request.items),
            message_format=MessageFormat(
                custom_tools=can.custom_tools,
                developer_role=can.developer_role,
                short_call_ids=dialect.short_call_ids,
            ),
        ),
        "stream": request.streamed,
    }
    if request.streamed:
        body["stream_options"] = {"include_usage": True}
    if request.answer_prefix:
        body = with_prefix(body, request.answer_prefix, route=route)
    if sampling.tools:
        body |= tool_parameters(sampling, can)
    return body | filled(
        **{dialect.limit: sampling.max_output_tokens},
        logprobs=sampling.logprobs or None,
        top_logprobs=(sampling.top_logprobs or 0) if sampling.logprobs else None,
        reasoning_effort=sampling.reasoning_effort,
        verbosity=sampling.verbosity,
        response_format=sampling.response_format,
        **common_parameters(sampling),
    )
