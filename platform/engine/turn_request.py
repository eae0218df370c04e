"""Builds the request of a turn: conversation, current tools, and instructions that replace missing abilities."""

from collections.abc import Sequence
from dataclasses import replace

import orjson

from conversations.items import StoredItem
from engine.calls.toolbox import Toolbox
from engine.compaction import window
from engine.compaction.items import CompactedContext, from_latest_compaction
from engine.state import RunContext, RunState
from engine.turn import FunctionTool, Sampling, TurnRequest

_ONLY_JSON = "Unless you call a tool, answer with a single JSON"
# Reasoning efforts for which answers take minutes.
_LONG_EFFORTS = frozenset({"medium", "high", "xhigh", "max"})
_NOTHING_ELSE = " and nothing else: no text around it, no code fence."


def is_optional(choice: str | FunctionTool | None) -> bool:
    """Return True if the choice lets the model answer without a tool call."""
    return choice in (None, "none", "auto")


def required_choice(context: RunContext, state: RunState) -> str | FunctionTool | None:
    """Return the tool choice that the next turn must follow, or None."""
    # Only the first answer has to call: a model that is forced to call in every turn would never finish.
    choice = context.sampling.tool_choice
    answers = state.turn - state.discarded - state.compactions
    return choice if not is_optional(choice) and answers == 0 else None


def build(context: RunContext, state: RunState, tools: Toolbox) -> TurnRequest:
    """Return the request of the next turn."""
    functions = tools.functions()
    sampling = context.sampling
    if state.turn and sampling.max_output_tokens is not None:
        sampling = replace(sampling, max_output_tokens=tokens_left(context, state))
    if functions:
        sampling = replace(sampling, tools=(*sampling.tools, *functions))
    if (choice := _choice(context, state, tools, functions)) != sampling.tool_choice:
        sampling = replace(sampling, tool_choice=choice)
    instruction_parts = [context.instructions or ""]
    if context.traits.structured_output == "prompted" and sampling.response_format is not None:
        instruction_parts.append(_format_instruction(sampling.response_format))
        sampling = replace(sampling, response_format=None)
    if not context.traits.forced_tool_choice and not is_optional(sampling.tool_choice):
        chosen = sampling.tool_choice
        named = f"the tool '{chosen.name}'" if isinstance(chosen, FunctionTool) else "one of your tools"
        instruction_parts.append(f"Your next answer must be a call of {named}.")
        sampling = replace(sampling, tool_choice="auto")
    instructions = "\n\n".join(filter(None, instruction_parts)) or context.instructions
    return TurnRequest(
        model=context.model,
        instructions=instructions,
        items=_items(context, state, instructions, sampling),
        sampling=sampling,
        first_output_index=state.next_output_index,
        attachments=context.attachments,
        cipher=context.cipher,
        streamed=context.wants_events or bool(functions) or _may_end_early_or_late(sampling),
    )


def _may_end_early_or_late(sampling: Sampling) -> bool:
    # A stop sequence ends a stream as soon as it is found, which saves the cost of the rest. Reasoning and loops with
    # hosted tools take minutes, in which proxies would close a silent connection. Operators also watch such loops in
    # the console.
    return bool(sampling.stop or sampling.reasoning_summary) or sampling.reasoning_effort in _LONG_EFFORTS


def tokens_left(context: RunContext, state: RunState) -> int | None:
    """Return the rest of `max_output_tokens` for later turns; None without a limit."""
    # Discarded turns count, because they were paid for. Compaction notes do not count, because they are not part of
    # the answer, and lost calls do not count, because they are not the client's fault.
    limit = context.sampling.max_output_tokens
    uncounted = state.compaction_tokens + state.lost_tokens
    return limit if limit is None else limit - state.usage.output_tokens + uncounted


def current_context(context: RunContext, state: RunState) -> CompactedContext:
    """Return the conversation for the next turn, without the instruction items."""
    output = state.context_items()
    if state.has_compacted and context.cipher is not None:
        latest = max(at for at, item in enumerate(output) if item.type == "compaction")
        return from_latest_compaction(output[latest:], context.cipher.decrypt_compaction)
    first, end = context.instruction_items, context.instruction_items + context.compacted_items
    return CompactedContext(compacted=context.items[first:end], rest=[*context.items[end:], *output])


def all_items(context: RunContext, state: RunState) -> list[StoredItem]:
    """Return all items for the next turn, before any truncation."""
    return [*context.items[: context.instruction_items], *current_context(context, state).items]


def is_tool_limit_reached(context: RunContext, state: RunState) -> bool:
    """Return True if `max_tool_calls` allows no further hosted call."""
    limit = context.parameters.get("max_tool_calls")
    return limit is not None and state.hosted_calls >= limit


def _items(context: RunContext, state: RunState, instructions: str | None, sampling: Sampling) -> Sequence[StoredItem]:
    items, size = all_items(context, state), context.traits.context_window
    # Without a known context window nothing is dropped, until the upstream has rejected the input as too long.
    if context.parameters.get("truncation") != "auto" or (size is None and not state.input_too_long):
        return items
    return window.fit(
        items,
        window=size,
        instructions=instructions,
        sampling=sampling,
        halved=state.input_too_long,
        attachments=context.attachments,
    )


def _choice(
    context: RunContext, state: RunState, tools: Toolbox, functions: Sequence[FunctionTool]
) -> str | FunctionTool | None:
    chosen = context.sampling.tool_choice
    if is_optional(chosen):
        # Calls over `max_tool_calls` would be refused one by one, so the model is kept from making them. Calls of
        # client tools are still allowed, so this applies only if there are none.
        only_hosted = functions and not context.sampling.tools
        return "none" if only_hosted and is_tool_limit_reached(context, state) else chosen
    if required_choice(context, state) is None:
        return "auto"
    if isinstance(chosen, FunctionTool):
        # A choice may name a kind of hosted tool, e.g. "file_search"; upstreams only know the functions that it offers.
        offered = [tool for tool in (*context.sampling.tools, *functions) if tool.name == chosen.name]
        of_kind = [tool for tool in functions if tools.kind(tool.name) == chosen.name]
        return next(iter(offered), of_kind[0] if len(of_kind) == 1 else "required")
    return chosen


def _format_instruction(response_format: dict[str, object]) -> str:
    promised = response_format.get("json_schema")
    if not isinstance(promised, dict):
        return f"{_ONLY_JSON} object{_NOTHING_ELSE}"
    schema = orjson.dumps(promised["schema"]).decode()
    return f"{_ONLY_JSON} document{_NOTHING_ELSE} It must be valid against this JSON schema:\n{schema}"
