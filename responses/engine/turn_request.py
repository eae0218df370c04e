"""What a turn asks of its model: everything said so far, the tools of now, and words for what the model lacks."""

from collections.abc import Sequence
from dataclasses import replace

import orjson

from conversations.items import StoredItem
from responses.engine.calls.port import Toolbox
from responses.engine.compaction import window
from responses.engine.compaction.items import CompactedContext, from_latest_compaction
from responses.engine.state import RunContext, RunState
from responses.engine.turn import FunctionTool, Sampling, TurnRequest

_NOTHING_BUT = "Unless you call a tool, answer with one JSON"
_NOTHING_AROUND = " and nothing else: no words around it, no code fence."


def is_optional(choice: str | FunctionTool | None) -> bool:
    """Whether the model may end with words."""
    return choice in (None, "none", "auto")


def required_choice(context: RunContext, state: RunState) -> str | FunctionTool | None:
    """The call that the next turn has to make. It is made once: else no run would end."""
    choice = context.sampling.tool_choice
    answers = state.turn - state.discarded - state.compactions
    return choice if not is_optional(choice) and answers == 0 else None


def build(context: RunContext, state: RunState, tools: Toolbox) -> TurnRequest:
    """The next turn."""
    functions = tools.functions()
    sampling = _sampling(context, state)
    if functions:
        sampling = replace(sampling, tools=(*sampling.tools, *functions))
    sampling = replace(sampling, tool_choice=_choice(context, state, tools, functions))
    words = [context.instructions or ""]
    if context.traits.structured_output == "prompted" and sampling.response_format is not None:
        words.append(_format_instruction(sampling.response_format))
        sampling = replace(sampling, response_format=None)
    if not context.traits.forced_tool_choice and not is_optional(sampling.tool_choice):
        words.append(_choice_instruction(sampling.tool_choice))
        sampling = replace(sampling, tool_choice="auto")
    instructions = "\n\n".join(filter(None, words)) or context.instructions
    return TurnRequest(
        model=context.model,
        instructions=instructions,
        items=_items(context, state, instructions, sampling),
        sampling=sampling,
        first_output_index=state.next_output_index,
        attachments=context.attachments,
        cipher=context.cipher,
    )


def tokens_left(context: RunContext, state: RunState) -> int | None:
    """What is left of `max_output_tokens` for the turns to come; discarded ones have cost, too. The notes of
    compactions are no part of the answer."""
    limit = context.sampling.max_output_tokens
    return limit if limit is None else limit - state.usage.output_tokens + state.compaction_tokens


def current_context(context: RunContext, state: RunState) -> CompactedContext:
    """The conversation as the next turn reads it, behind what belongs to the instructions."""
    told = state.context_items()
    if state.has_compacted and context.cipher is not None:
        latest = max(at for at, item in enumerate(told) if item.type == "compaction")
        return from_latest_compaction(told[latest:], context.cipher.decrypt_compaction)
    first, end = context.instruction_items, context.instruction_items + context.compacted_items
    return CompactedContext(compacted=context.items[first:end], rest=[*context.items[end:], *told])


def all_items(context: RunContext, state: RunState) -> list[StoredItem]:
    """All that the next turn could read."""
    return [*context.items[: context.instruction_items], *current_context(context, state).items]


def is_tool_limit_reached(context: RunContext, state: RunState) -> bool:
    """Whether no further call of a hosted tool will be made."""
    limit = context.parameters.get("max_tool_calls")
    return limit is not None and state.hosted_calls >= limit


def _items(context: RunContext, state: RunState, instructions: str | None, sampling: Sampling) -> Sequence[StoredItem]:
    """Everything said so far; with `truncation` `auto` as much of it as can be read."""
    items, size = all_items(context, state), context.traits.context_window
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


def _sampling(context: RunContext, state: RunState) -> Sampling:
    sampling = context.sampling
    if state.turn == 0 or sampling.max_output_tokens is None:
        return sampling
    return replace(sampling, max_output_tokens=tokens_left(context, state))


def _choice(
    context: RunContext, state: RunState, tools: Toolbox, functions: Sequence[FunctionTool]
) -> str | FunctionTool | None:
    """The choice in the terms of the tools of now. Later turns are free to end with words."""
    chosen = context.sampling.tool_choice
    if is_optional(chosen):
        only_ours = functions and not context.sampling.tools
        return "none" if only_ours and is_tool_limit_reached(context, state) else chosen
    if required_choice(context, state) is None:
        return "auto"
    if isinstance(chosen, FunctionTool):
        offered = [tool for tool in (*context.sampling.tools, *functions) if tool.name == chosen.name]
        of_kind = [tool for tool in functions if tools.kind(tool.name) == chosen.name]
        return next(iter(offered), of_kind[0] if len(of_kind) == 1 else "required")
    return chosen


def _format_instruction(response_format: dict[str, object]) -> str:
    promised = response_format.get("json_schema")
    if not isinstance(promised, dict):
        return f"{_NOTHING_BUT} object{_NOTHING_AROUND}"
    schema = orjson.dumps(promised["schema"]).decode()
    return f"{_NOTHING_BUT} document{_NOTHING_AROUND} It has to be valid under this JSON schema:\n{schema}"


def _choice_instruction(choice: str | FunctionTool | None) -> str:
    if isinstance(choice, FunctionTool):
        return f"Your next answer has to be a call of the tool '{choice.name}'."
    return "Your next answer has to be a call of one of your tools."
