"""Differences between chat-completions upstreams that affect requests, by provider and by family of models.

`dialect_of` chooses by the host of the base URL and the name of the model, because the provider of a server in the
operator's own network is unknown. A model's capabilities override this choice. Each row names its source page.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from tenants.capabilities import AssistantPrefix, OutputLimit, ReasoningHistory
from tenants.directory import Route

THINKING_PARTS = "content[].thinking"
"""Reasoning field of servers that want reasoning as parts of the content."""
THINK_TAGS = "<think>"
"""Reasoning field of servers that want reasoning between tags at the start of the text."""
OUTPUT_LIMITS = (OutputLimit.MAX_TOKENS.value, OutputLimit.MAX_COMPLETION_TOKENS.value)
"""Names of the parameter that limits the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Format of the requests that an upstream accepts.

    `limit`: the parameter that limits the output. `short_call_ids`: ids of calls have nine letters or digits.
    `reasoning_field`: the field of assistant messages for their reasoning, or a constant of this module; if it is
    empty, no reasoning is sent. `all_turns`: the reasoning of earlier turns is sent too. `needs_reasoning`: each
    message with calls must have the field, whatever the client asks for.
    """

    limit: str = OutputLimit.MAX_TOKENS.value
    short_call_ids: bool = False
    reasoning_field: str = ""
    all_turns: bool = False
    needs_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Values of a provider (`hosts`: ends of host names) or of a family (`models`: pattern of the start of a name)."""

    source: str
    values: Mapping[str, Any]
    hosts: tuple[str, ...] = ()
    models: str = ""


_OPENAI_LIMIT = {"limit": OutputLimit.MAX_COMPLETION_TOKENS.value}
_EVERY_TURN = {"reasoning_field": "reasoning_content", "all_turns": True, "needs_reasoning": True}
# The first matching row of a host and the first matching row of a family apply. The host's values take precedence.
_ROWS = (
    _Row(
        hosts=("api.openai.com", ".openai.azure.com"),
        values={**_OPENAI_LIMIT},
        source="https://platform.openai.com/docs/api-reference/chat/create",
    ),
    _Row(
        hosts=("api.cerebras.ai",),
        values={**_OPENAI_LIMIT},
        source="https://inference-docs.cerebras.ai/api-reference/chat-completions",
    ),
    _Row(
        hosts=("api.groq.com",),
        values={**_OPENAI_LIMIT},
        source="https://console.groq.com/docs/api-reference#chat-create",
    ),
    _Row(
        hosts=("api.mistral.ai",),
        values={"short_call_ids": True},
        source="https://docs.mistral.ai/api/endpoint/chat",
    ),
    _Row(
        hosts=("api.deepseek.com",),
        values=_EVERY_TURN,
        source="https://api-docs.deepseek.com/guides/thinking_mode",
    ),
    _Row(
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        values=_EVERY_TURN,
        source="https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
    ),
    _Row(
        hosts=("api.z.ai", "open.bigmodel.cn"),
        values={"reasoning_field": "reasoning_content"},
        source="https://docs.z.ai/guides/capabilities/thinking-mode",
    ),
    _Row(
        hosts=("api.minimax.io", "api.minimaxi.com"),
        values={"reasoning_field": THINK_TAGS, "all_turns": True},
        source="https://platform.minimax.io/docs/api-reference/text-openai-api",
    ),
    _Row(
        hosts=("openrouter.ai",),
        values={"reasoning_field": "reasoning_details", "all_turns": True},
        source="https://openrouter.ai/docs/use-cases/reasoning-tokens",
    ),
    _Row(
        models=r"mistral|ministral|codestral|devstral|pixtral|mixtral",
        values={"short_call_ids": True},
        source="https://docs.mistral.ai/capabilities/function_calling",
    ),
    _Row(
        models=r"magistral",
        values={"short_call_ids": True, "reasoning_field": THINKING_PARTS},
        source="https://docs.mistral.ai/capabilities/reasoning",
    ),
    _Row(
        models=r"gpt-oss",
        values={"reasoning_field": "reasoning"},
        source="https://cookbook.openai.com/articles/gpt-oss/handle-raw-cot",
    ),
    _Row(
        models=r"kimi-k2(-thinking|[.-][5-9])",
        values={"reasoning_field": "reasoning_content", "all_turns": True},
        source="https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
    ),
    _Row(
        models=r"deepseek-v(3\.[2-9]|[4-9])",
        values={"reasoning_field": "reasoning_content", "all_turns": True},
        source="https://api-docs.deepseek.com/guides/thinking_mode",
    ),
    _Row(
        models=r"glm-(4\.[5-9]|[5-9])",
        values={"reasoning_field": "reasoning_content"},
        source="https://docs.z.ai/guides/capabilities/thinking-mode",
    ),
)
# Names of the limit parameter for upstreams that have refused the other name, by upstream and model.
_refused: OrderedDict[tuple[str, str], str] = OrderedDict()
_MAX_REFUSED = 1000
_REFUSAL = re.compile(
    r"unsupported|not supported|extra[ _](forbidden|inputs|fields)|unexpected|unknown|unrecogni[sz]ed"
    r"|not (permitted|allowed)",
    re.IGNORECASE,
)


def dialect_of(route: Route) -> Dialect:
    """Return the dialect of a route's upstream."""
    can = route.capabilities
    dialect = _dialect_for(urlsplit(route.upstream.base_url).hostname or "", route.upstream_model.lower())
    limit = can.output_limit or _refused.get((route.upstream.id, route.upstream_model)) or dialect.limit
    field, all_turns, needs_reasoning = dialect.reasoning_field, dialect.all_turns, dialect.needs_reasoning
    if can.reasoning_history:
        all_turns = can.reasoning_history == ReasoningHistory.ALL_TURNS
        needs_reasoning = needs_reasoning and can.reasoning_history != ReasoningHistory.NONE
    if can.reasoning_field:
        field = can.reasoning_field
        needs_reasoning = needs_reasoning and field == dialect.reasoning_field
    if can.reasoning_history == ReasoningHistory.NONE:
        field = ""
    known = (dialect.limit, dialect.reasoning_field, dialect.all_turns, dialect.needs_reasoning)
    if (limit, field, all_turns, needs_reasoning) == known:
        return dialect
    return replace(dialect, limit=limit, reasoning_field=field, all_turns=all_turns, needs_reasoning=needs_reasoning)


@lru_cache(maxsize=4096)
def _dialect_for(host: str, model: str) -> Dialect:
    # Names of models may start with an owner, as in mistralai/Mistral-Small.
    name = model.rpartition("/")[2]
    of_host = next((row for row in _ROWS if row.hosts and f".{host}".endswith(_ends(row))), None)
    of_model = next((row for row in _ROWS if row.models and re.match(row.models, name)), None)
    values: dict[str, Any] = {}
    for row in (of_model, of_host):
        values |= row.values if row is not None else {}
    return Dialect(**values)


def _ends(row: _Row) -> tuple[str, ...]:
    return tuple(f".{host.removeprefix('.')}" for host in row.hosts)


def with_prefix(body: dict[str, Any], text: str, *, route: Route) -> dict[str, Any]:
    """Return a chat completion that asks for the continuation of an answer that begins with this text."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    kind = route.capabilities.assistant_prefix
    if kind in {AssistantPrefix.PREFIX, AssistantPrefix.REPEATED_PREFIX}:
        # https://api-docs.deepseek.com/guides/chat_prefix_completion and
        # https://docs.mistral.ai/capabilities/completion/prefix
        message["prefix"] = True
    body = {**body, "messages": [*body["messages"], message]}
    if kind == AssistantPrefix.CONTINUE_FINAL_MESSAGE:
        # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#extra-parameters_2
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def is_refused_limit(status: int, error: object) -> bool:
    """Return True if an upstream's error says that it does not support a parameter that limits the output."""
    text = str(error)
    return status in {400, 422} and any(name in text for name in OUTPUT_LIMITS) and bool(_REFUSAL.search(text))


def without_refused_limit(body: Mapping[str, Any], error: object) -> dict[str, Any] | None:
    """Return a request with the other name of its output limit, if the error names the parameter that was sent."""
    for name, other_name in zip(OUTPUT_LIMITS, reversed(OUTPUT_LIMITS), strict=True):
        if name in body and re.search(rf"\b{name}\b", str(error)):
            return {**{key: value for key, value in body.items() if key != name}, other_name: body[name]}
    return None


def learn_limit(route: Route, body: Mapping[str, Any]) -> None:
    """Use the limit's name in this request for its model from now on, because the upstream refused the other name."""
    _refused[route.upstream.id, route.upstream_model] = next(name for name in OUTPUT_LIMITS if name in body)
    if len(_refused) > _MAX_REFUSED:
        _refused.popitem(last=False)
