"""Convert between a typed request and its stored parts: public parameters, hidden options and sampling parameters.

`parameters` is the constant part of the response object, including all defaults. `options` holds the values that the
response object does not contain. In particular, `options` lists the parameters that were sent, because only sent
parameters are forwarded to the upstream.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from conversations.items import InputMessage, ItemBase, StoredItem, from_wire
from conversations.items.parts import input_part
from core.clock import unix
from engine.compaction.items import CompactionPlan
from engine.turn import Sampling
from responses.requests import tool_offer
from responses.schema import CreateResponse, JsonSchemaFormat
from responses.schema.tools import shown_tools

# Parameters that have the same name in the request, in the response object and in `Sampling`.
PLAIN = (
    "parallel_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "user",
)
# Parameters that only some servers support, with vLLM's names. The response object omits them, because they are not
# part of OpenAI's API.
EXTRA_SAMPLING = ("top_k", "seed", "repetition_penalty", "min_p", "chat_template_kwargs")
_NO_FIELDS = frozenset[str]()
_DEFAULTS: dict[str, Any] = {
    "parallel_tool_calls": True,
    "max_output_tokens": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "service_tier": "auto",
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
LOGPROBS = "message.output_text.logprobs"


def public_parameters(
    body: CreateResponse, *, response_id: str, created_at: datetime, preface: Sequence[ItemBase] = ()
) -> dict[str, Any]:
    """Return the constant part of the response object, with its fields in OpenAI's order.

    `preface` holds the messages of the request's prompt.
    """
    plain = {name: _or_default(getattr(body, name), default) for name, default in _DEFAULTS.items()}
    instructions: str | list[dict[str, Any]] | None = body.instructions
    if preface:
        # With a prompt, the instructions are a list of messages, which begins with the request's own instructions. In
        # the types of the SDK these are input messages, of which only assistant messages have ids.
        own = [InputMessage(role="system", content=body.instructions)] if body.instructions else []
        instructions = [
            {name: value for name, value in message.wire().items() if name != "id"}
            if isinstance(message, InputMessage)
            else message.with_id()
            for message in (*own, *preface)
        ]
    text_format: dict[str, Any] = {"type": "text"}
    match body.text.format if body.text else None:
        case JsonSchemaFormat() as schema:
            text_format = {
                "type": "json_schema",
                "name": schema.name,
                "description": schema.description,
                "schema": schema.json_schema,
                "strict": bool(schema.strict),
            }
        case None:
            pass
        case other:
            text_format = {"type": other.type}
    verbosity = (body.text.verbosity if body.text else None) or "medium"
    # Effective values. `context` and `mode` are included only if they were sent.
    reasoning: dict[str, Any] = {"effort": None, "summary": None}
    if sent := body.reasoning:
        reasoning = {"effort": sent.effort, "summary": sent.style}
        if sent.context is not None:
            reasoning["context"] = "current_turn" if sent.context == "auto" else sent.context
        if sent.mode is not None:
            reasoning["mode"] = sent.mode
    return {
        "id": response_id,
        "object": "response",
        "created_at": unix(created_at),
        "status": "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": instructions,
        "max_output_tokens": plain["max_output_tokens"],
        "max_tool_calls": body.max_tool_calls,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": plain["parallel_tool_calls"],
        "presence_penalty": plain["presence_penalty"],
        "frequency_penalty": plain["frequency_penalty"],
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": plain["prompt_cache_key"],
        "reasoning": reasoning,
        "safety_identifier": plain["safety_identifier"],
        "service_tier": plain["service_tier"],
        "store": _or_default(body.store, default=True),
        "temperature": plain["temperature"],
        "text": {"format": text_format, "verbosity": verbosity},
        "tool_choice": tool_offer.public_tool_choice(body),
        "tools": shown_tools(body.tools),
        "top_logprobs": plain["top_logprobs"],
        "top_p": plain["top_p"],
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": plain["user"],
        "metadata": body.metadata or {},
        # The value is null for the standard program, unless the request named it.
        "access_programs": body.access_programs and {"cyber": "standard"},
        "prompt_cache_retention": body.prompt_cache_retention,
        # The result is known only at the end.
        "moderation": None,
        **_only_if_sent(body),
    }


def _only_if_sent(body: CreateResponse) -> dict[str, Any]:
    """Return the fields that are part of the response object only if the request sent them."""
    shown: dict[str, Any] = {}
    if options := body.prompt_cache_options:
        shown["prompt_cache_options"] = {"mode": options.mode or "implicit", "ttl": options.ttl or "30m"}
        if options.comparison_response_id is not None:
            shown["prompt_cache_options"]["comparison_response_id"] = options.comparison_response_id
            # Only the upstream knows what its cache contains, and chat completions do not report it.
            shown["prompt_cache_diagnostics"] = {"type": "unavailable"}
    prompt, given = body.prompt, ((body.prompt and body.prompt.variables) or {}).items()
    variables = {name: value if isinstance(value, str) else input_part(value) for name, value in given}
    shown |= {
        "conversation": body.conversation and {"id": body.conversation.id},
        "prompt": prompt and {"id": prompt.id, "variables": variables, "version": prompt.version},
        "request_id": body.request_id,
        # The effective value. This server supports no other value.
        "image": body.image and {"context_compression": "disabled"},
    }
    return {name: value for name, value in shown.items() if value is not None}


def split_instructions(parameters: dict[str, Any]) -> tuple[str | None, list[StoredItem]]:
    """Return the stored instructions as a text and as the messages of a prompt. One of the two is empty."""
    written = parameters.get("instructions")
    return (None, [from_wire(message) for message in written]) if isinstance(written, list) else (written, [])


def hidden_options(body: CreateResponse) -> dict[str, Any]:
    """Return the values of the request that the response object omits but a worker needs to resume the run."""
    obfuscate = body.stream_options.include_obfuscation if body.stream_options else None
    sent = [name for name in (*PLAIN, "text", "tool_choice") if getattr(body, name) is not None]
    if body.text and body.text.verbosity:
        sent.append("verbosity")
    hidden: dict[str, Any] = {
        "sent": sent,
        "logprobs": LOGPROBS in (body.include or []),
        "include": body.include or [],
        "obfuscate": _or_default(obfuscate, default=True),
    }
    # Sampling parameters that the response object omits, or for which it shows defaults.
    if extra := {name: getattr(body, name) for name in EXTRA_SAMPLING if getattr(body, name) is not None}:
        hidden["extra"] = extra
    if body.client_metadata:
        hidden["client_metadata"] = body.client_metadata
    if body.stop:
        hidden["stop"] = body.stop
    if options := body.prompt_cache_options:
        cache = {"mode": options.mode, "ttl": options.ttl}
        hidden["cache"] = {name: value for name, value in cache.items() if value is not None} or None
    if body.compacts:
        hidden["compaction"] = {"at_once": True}
    elif body.context_management:
        hidden["compaction"] = {"threshold": body.context_management[0].compact_threshold}
    return hidden


def included_fields(options: dict[str, Any]) -> frozenset[str]:
    """Return the optional fields of `include` from stored options."""
    # The usual empty set is shared: each further one would take 0.2 KB of an open stream.
    return frozenset(options["include"]) if options.get("include") else _NO_FIELDS


def compaction_plan(options: dict[str, Any]) -> CompactionPlan | None:
    """Return the plan for compacting the context from stored options, or None if it is never compacted."""
    plan = options.get("compaction")
    return None if plan is None else CompactionPlan(**plan)


def build_sampling(parameters: dict[str, Any], options: dict[str, Any], items: Iterable[StoredItem] = ()) -> Sampling:
    """Return the sampling parameters of a stored response. Items of its context may add tools."""
    sent = set(options["sent"])
    # Only parameters that were sent are forwarded, because the upstream may have other defaults.
    choice = parameters["tool_choice"] if "tool_choice" in sent else None
    text = parameters["text"] if "text" in sent else {}
    tools = tool_offer.available_tools(parameters["tools"], choice, items)
    # The text format in the nested form of chat completions; None for plain text.
    response_format: dict[str, Any] | None = None
    match text.get("format"):
        case None | {"type": "text"}:
            pass
        case {"type": "json_schema"} as shown:
            # Fields that the client did not set are stored as null.
            schema = {key: value for key, value in shown.items() if key != "type" and value is not None}
            response_format = {"type": "json_schema", "json_schema": schema}
        case _:
            response_format = {"type": "json_object"}
    return Sampling(
        tools=tool_offer.visible_tools(tools),
        tool_choice=tool_offer.upstream_tool_choice(choice, tools),
        logprobs=options["logprobs"],
        include=included_fields(options),
        reasoning_effort=parameters["reasoning"]["effort"],
        reasoning_context=parameters["reasoning"].get("context"),
        reasoning_summary=parameters["reasoning"]["summary"],
        verbosity=parameters["text"]["verbosity"] if "verbosity" in sent else None,
        response_format=response_format,
        prompt_cache_options=options.get("cache"),
        prompt_cache_retention=parameters.get("prompt_cache_retention"),
        extra=options.get("extra"),
        stop=tuple(options.get("stop", ())),
        **{name: parameters[name] for name in PLAIN if name in sent},
    )


def input_items(body: CreateResponse) -> list[Any]:
    """Return the input as items, without a compaction trigger. A string becomes one user message."""
    if isinstance(body.input, str):
        return [InputMessage(role="user", content=body.input)]
    return list(body.input[:-1] if body.compacts else body.input)


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value
