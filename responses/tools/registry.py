"""Tool registry: the plug-ins that the settings list, and the tools of a run from the plug-ins that it needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from conversations.items import StoredItem
from core.db.db_threads import in_db_thread
from core.errors import InvalidValue, UnsupportedValue
from core.records import record
from core.telemetry import tracing
from engine.calls.toolbox import HostedTool, Toolbox
from providers.hosted_calls import HISTORY
from responses.models import Response
from responses.requests import tool_offer
from responses.requests.parameters import input_items
from responses.runs.identity import UsageAccount
from responses.runs.store import CallUpdate
from responses.schema import CreateResponse, add_tools
from responses.schema.choices import is_forced
from responses.schema.options import BackgroundOptions
from responses.schema.tools import ToolParam, UnavailableTool, shown_tools
from responses.tools import approvals
from responses.tools.card import Card
from responses.tools.plugin import NewToolRequest, ToolPlugin, ToolRequest
from tenants.principal import Principal

PLUGINS: list[ToolPlugin] = []


def register(*plugins: ToolPlugin) -> None:
    """Add plug-ins, with the schemas and the history functions of their tools."""
    PLUGINS.extend(plugins)
    add_tools(*(param for plugin in plugins for param in plugin.params))
    for plugin in plugins:
        HISTORY.update(plugin.history)


register(*(import_string(path)() for path in settings.HOSTED_TOOLS))


@record
class RunTools:
    """Hosted tools of a new run.

    `calls` are updates of the tool calls that waited for the approvals in this request. `encrypted_secrets`
    returns the encrypted data that a worker needs to execute the run; empty if there is none. `decision_seconds` is the
    time for which the run waits for decisions of people about its calls; None if it does not wait.
    """

    toolbox: Toolbox
    calls: Sequence[CallUpdate] = ()
    encrypted_secrets: Callable[[], str] = str
    decision_seconds: int | None = None


async def without_unavailable_tools(principal: Principal, body: CreateResponse) -> tuple[CreateResponse, list[str]]:
    """Return the request without the hosted tools that this server cannot provide, and a warning for each limitation.

    Raises `UnsupportedValue` if the tool choice requires a tool that was left out, or if the team's settings reject
    such requests.
    """
    found = [
        (index, limitation)
        for index, tool in enumerate(body.tools or ())
        for plugin in PLUGINS
        if tool.type in plugin.types
        and (limitation := await plugin.limitation(tool, team_id=principal.team_id)) is not None
    ]
    if not found:
        return body, []
    tools = body.tools or []
    _require_permissions(principal, tools)
    dropped = {index for index, limitation in found if limitation.drops_tool}
    left = [UnavailableTool() if index in dropped else tool for index, tool in enumerate(tools)]
    index, first = found[0]
    if principal.rejects_unavailable_tools or (dropped and is_forced(body.tool_choice, left)):
        raise UnsupportedValue(first.message, param=f"tools[{index}].{first.param}")
    warnings = [
        f"The tool '{tools[index].type}' was left out. {limitation.message}"
        if limitation.drops_tool
        else limitation.message
        for index, limitation in found
    ]
    return body.model_copy(update={"tools": left}), warnings


def _require_permissions(principal: Principal, tools: Sequence[ToolParam]) -> None:
    for index, tool in enumerate(tools):
        for plugin in PLUGINS:
            if tool.type in plugin.types and (kind := plugin.permission(tool)) is not None:
                principal.require_any_tool(kind, param=f"tools[{index}].type")


async def create_tools(
    *, principal: Principal, body: CreateResponse, items: Sequence[StoredItem], response_id: str
) -> RunTools:
    """Build the tools of a new response.

    Everything is validated before the approvals are recorded, so that hardly any recorded answer must be withdrawn.
    Raises an API error for a tool that is not allowed, not configured or not usable.
    """
    params = body.tools or []
    _require_permissions(principal, params)
    answers = approvals.approval_answers(input_items(body), items)
    if not body.generates:
        if any(answer.approve for answer in answers):
            raise InvalidValue(
                "A request with 'generate' set to false cannot approve a tool call, because nothing would run it.",
                param="generate",
            )
        return RunTools(toolbox=Toolbox())
    if not params and not answers:
        # Fast path: most requests have no tools, and the code below would take 15 us for them.
        return RunTools(toolbox=Toolbox())
    request = NewToolRequest(
        tools=shown_tools(params),
        choice=tool_offer.public_tool_choice(body),
        items=items,
        account=UsageAccount(
            team_id=principal.team_id,
            key_id=principal.key_id,
            object_id=response_id,
            end_user=body.safety_identifier or body.user or "",
        ),
        continues_without_servers=principal.continues_without_servers,
        requires_approval=principal.requires_approval,
        principal=principal,
        params=params,
        answers=answers,
    )
    resolved = [(plugin, await plugin.resolve(request)) for plugin in _enabled(request)]
    # This records the client's answers, so the code after it must not reject the request.
    record = partial(
        approvals.record_answers,
        team_id=principal.team_id,
        actor=principal.actor,
        response_id=response_id,
        answers=answers,
    )
    outcome = await in_db_thread(record) if answers else approvals.ApprovalOutcome()
    toolbox = _toolbox(replace(request, decided=outcome.granted), resolved)
    return RunTools(
        toolbox=toolbox,
        calls=outcome.calls,
        encrypted_secrets=partial(_encrypt_secrets, resolved),
        decision_seconds=_decision_seconds(principal, body, resolved),
    )


def _decision_seconds(
    principal: Principal, body: CreateResponse, resolved: Sequence[tuple[ToolPlugin, Any]]
) -> int | None:
    """Return the time for which the run waits for decisions. The request decides, else a connector or the team."""
    options = body.background_options or BackgroundOptions()
    waits = options.wait_for_approval
    if waits is None:
        waits = principal.waits_for_approval or any(plugin.waits(state) for plugin, state in resolved)
    if not body.background or not waits:
        return None
    return options.approval_wait_seconds or settings.APPROVAL_WAIT_SECONDS


def _encrypt_secrets(resolved: Sequence[tuple[ToolPlugin, Any]]) -> str:
    return "".join(plugin.secrets(state) for plugin, state in resolved)


def restore_tools(response: Response, items: Sequence[StoredItem], *, output: Sequence[StoredItem]) -> Toolbox:
    """Rebuild the tools of a run that another worker resumes; call it in a database thread.

    `items` is the context from which the run has begun, `output` its own output so far.
    """
    request = ToolRequest(
        tools=response.parameters["tools"],
        choice=response.parameters["tool_choice"],
        items=items,
        account=UsageAccount(
            team_id=response.team_id,
            key_id=response.api_key_id,
            object_id=response.pk,
            end_user=response.end_user or "",
        ),
        decided=approvals.decided_approvals(response.pk, items, output=output),
        continues_without_servers=response.team.continue_without_mcp_servers,
        requires_approval=frozenset(response.team.require_approval),
    )
    resolved = [(plugin, plugin.restore(request, response.secrets)) for plugin in _enabled(request)]
    return _toolbox(request, resolved)


def card_of(body: dict[str, Any]) -> Card | None:
    """Return the card of an item in the console, or None if no plug-in makes cards for its type."""
    for plugin in PLUGINS:
        if (make := plugin.cards.get(body["type"])) is not None:
            return make(body)
    return None


def _enabled(request: ToolRequest) -> list[ToolPlugin]:
    """Return the plug-ins whose tools occur in the request, in the order of the registry."""
    types = {tool["type"] for tool in request.tools}
    if isinstance(request, NewToolRequest) and request.answers:
        # The MCP plug-in rejects answers for servers that the request does not name.
        types.add("mcp")
    return [plugin for plugin in PLUGINS if not types.isdisjoint(plugin.types)]


def _toolbox(request: ToolRequest, resolved: Sequence[tuple[ToolPlugin, Any]]) -> Toolbox:
    tools: list[HostedTool] = []
    for plugin, state in resolved:
        tools += plugin.tools(request, state, tools)
    return Toolbox(tools, observe=tracing.tool_call)
