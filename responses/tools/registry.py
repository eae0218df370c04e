"""Tool registry: builds the hosted tools of a run from the parameters of its response.

`TOOLBOX_FACTORIES` lists the kinds of hosted tools. Each kind is a package of the same shape in `responses.tools`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from conversations.items import InputImage, StoredItem
from kernel import egress
from kernel.db_threads import in_db_thread
from kernel.errors import InvalidValue, UnsupportedValue
from responses.engine.calls.port import NoTools, Toolbox
from responses.models import Response
from responses.passthrough.images import TeamImageGenerator, check_image_model
from responses.requests import tool_offer
from responses.requests.attachments import TeamAttachments
from responses.requests.parameters import input_items
from responses.runs.store import CallUpdate
from responses.schema import CreateResponse
from responses.schema.containers import is_built_in
from responses.schema.images import ImageGenerationParam
from responses.schema.tools import ToolParam
from responses.schema.web_search import WEB_SEARCH_TYPES
from responses.tools import approvals
from responses.tools.approvals import ApprovalAnswer, GrantedApproval
from responses.tools.code_interpreter.run_container import (
    ContainerRequest,
    RunContainer,
    check_containers,
    container_requests,
    run_containers,
)
from responses.tools.code_interpreter.toolbox import CodeInterpreter
from responses.tools.combination import combine
from responses.tools.file_search.toolbox import FileSearchToolbox
from responses.tools.hosted_shell.toolbox import HostedShell
from responses.tools.image_generation.toolbox import NAME as IMAGES
from responses.tools.image_generation.toolbox import ImageToolbox
from responses.tools.mcp import request as mcp
from responses.tools.mcp.servers import RemoteServer
from responses.tools.mcp.sessions import McpSessions
from responses.tools.mcp.toolbox import ApprovedCall, McpToolbox
from responses.tools.tool_search.toolbox import DeferredTools, searches
from responses.tools.web_search.engines import ENGINES
from responses.tools.web_search.pages import PageReader
from responses.tools.web_search.toolbox import WebSearchToolbox
from responses.vectors.embedding import UsageAccount
from responses.vectors.tool import StoreSearcher, refuse_unusable, searchers
from tenants import directory
from tenants.capabilities import Capabilities
from tenants.directory import SearchEngineSettings
from tenants.models import Scope, ToolKind
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Hosted tools of a new run.

    `calls` are updates of the tool calls that waited for the approvals in this request. `secrets` is the encrypted data
    that a worker needs to resume a background run; empty if there is none.
    """

    toolbox: Toolbox
    calls: Sequence[CallUpdate] = ()
    secrets: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """Everything the toolboxes of a run are built from.

    `tools` and `choice` are as the response shows them, `items` is the context the model reads. `servers` and `granted`
    are not part of the response. `answers_http` is true if the client waits for a single JSON body.
    """

    tools: Sequence[Mapping[str, Any]]
    choice: Any
    items: Sequence[StoredItem]
    servers: Sequence[RemoteServer] = ()
    granted: Sequence[GrantedApproval] = ()
    answers_http: bool = False
    search: SearchEngineSettings | None = None
    files: Sequence[StoreSearcher] = ()
    containers: Sequence[tuple[ContainerRequest, RunContainer]] = ()
    account: UsageAccount


def _mcp(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    if not request.servers:
        return []
    approved = [
        ApprovedCall(
            request_id=one.request_id,
            server_label=one.request.server_label,
            name=one.request.name,
            arguments=one.request.arguments,
            definition=one.definition,
        )
        for one in request.granted
    ]
    sessions = McpSessions(egress.default())
    return [McpToolbox(request.servers, sessions, approved=approved, answers_http=request.answers_http)]


def _web_search(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    if request.search is None:
        return []
    make, public = ENGINES[request.search.kind]
    base_url = request.search.base_url or public
    engine = make(base_url=base_url, key=request.search.api_key, egress=egress.default())
    shown = [
        tool
        for tool in request.tools
        if tool["type"] in WEB_SEARCH_TYPES and tool_offer.allows(request.choice, tool["type"])
    ]
    return [WebSearchToolbox(tool, engine=engine, reader=PageReader(egress.default())) for tool in shown]


def _file_search(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    return [FileSearchToolbox(searcher) for searcher in request.files]


def _containers(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    return [
        # The code interpreter and the shell of a run may share one container.
        HostedShell(container) if needed.kind == "shell" else CodeInterpreter(container, kind=needed.kind)
        for needed, container in request.containers
        if tool_offer.allows(request.choice, needed.kind)
    ]


def _images(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    account = request.account
    return [
        ImageToolbox(
            tool, generator=TeamImageGenerator(account, tool.get("model")), content=TeamAttachments(account.team_id)
        )
        for tool in request.tools
        if tool["type"] == IMAGES and tool_offer.allows(request.choice, IMAGES)
    ]


def _tool_search(request: ToolRequest, earlier: Sequence[Toolbox]) -> list[Toolbox]:
    # The tool search comes last, because it has to find the deferred tools of the other toolboxes.
    deferred_tools = [toolbox for toolbox in earlier if isinstance(toolbox, DeferredTools)]
    return [*searches([{**tool} for tool in request.tools], request.choice, request.items, deferred_tools)]


TOOLBOX_FACTORIES: Sequence[Callable[[ToolRequest, Sequence[Toolbox]], list[Toolbox]]] = (
    # The order matters: `_tool_search` needs the toolboxes built before it.
    _mcp,
    _file_search,
    _web_search,
    _containers,
    _images,
    _tool_search,
)


async def create_tools(
    *, principal: Principal, body: CreateResponse, items: Sequence[StoredItem], response_id: str, answers_http: bool
) -> RunTools:
    """Build the tools of a new response.

    Validates everything first and records the approvals last: an approval request can be answered only once, so a
    request that is rejected afterwards would lose the client's answer. Raises the API errors of tools that are not
    allowed, not configured or not usable.
    """
    _require_tools(principal, body.tools or ())
    answers = approvals.approval_answers(input_items(body), items)
    if not body.generates:
        _refuse_approval(answers)
        return RunTools(toolbox=NoTools())
    if not (body.tools or answers):
        return RunTools(toolbox=NoTools())
    tools = body.tools or []
    servers = await mcp.servers(tools, principal=principal)
    approvals.check_labels(answers, [server.label for server in servers])
    search = await _find_search_engine(principal, tools)
    shown, choice = [tool.shown() for tool in tools], tool_offer.public_tool_choice(body)
    await check_containers(shown, principal=principal)
    account = UsageAccount(team_id=principal.team_id, key_id=principal.key_id, object_id=response_id)
    await _check_images(principal, tools)
    files = await _store_searchers(account, tools, shown, choice)
    # Nothing below may reject the request: this records the client's answers.
    record = partial(approvals.record_answers, team_id=principal.team_id, response_id=response_id, answers=answers)
    outcome = await in_db_thread(record) if answers else approvals.ApprovalOutcome()
    request = ToolRequest(
        tools=shown,
        choice=choice,
        items=items,
        servers=servers,
        granted=outcome.granted,
        answers_http=answers_http,
        search=search,
        files=files,
        containers=run_containers(shown, team_id=principal.team_id, key_id=principal.key_id),
        account=account,
    )
    secrets = mcp.encrypt_servers(servers) if servers and body.background else ""
    return RunTools(toolbox=_toolbox(request), calls=outcome.calls, secrets=secrets)


_PERMISSIONS = {
    "mcp": ToolKind.MCP,
    "file_search": ToolKind.FILE_SEARCH,
    "code_interpreter": ToolKind.CODE_INTERPRETER,
    IMAGES: ToolKind.IMAGE_GENERATION,
    **dict.fromkeys(WEB_SEARCH_TYPES, ToolKind.WEB_SEARCH),
}


def _require_tools(principal: Principal, tools: Sequence[ToolParam]) -> None:
    for index, tool in enumerate(tools):
        if (kind := _required_permission(tool)) is not None:
            principal.require_tool(kind, param=f"tools[{index}].type")


def _required_permission(tool: ToolParam) -> ToolKind | None:
    # The client runs tools that have no entry in _PERMISSIONS; they need no permission.
    if is_built_in(tool):
        return ToolKind.CODE_INTERPRETER
    return (
        ToolKind.SHELL if container_requests([tool.shown()]) and tool.type == "shell" else _PERMISSIONS.get(tool.type)
    )


async def _find_search_engine(principal: Principal, tools: Sequence[ToolParam]) -> SearchEngineSettings | None:
    indexes = [index for index, tool in enumerate(tools) if tool.type in WEB_SEARCH_TYPES]
    if not indexes:
        return None
    search = await directory.asearch_engine(principal.team_id)
    if search is None:
        message = (
            f"The tool type '{tools[indexes[0]].type}' is not supported here: no search engine is configured. "
            "An operator can set SEARXNG_URL or add a search engine in the admin."
        )
        raise UnsupportedValue(message, param=f"tools[{indexes[0]}].type")
    return search


async def _check_images(principal: Principal, tools: Sequence[ToolParam]) -> None:
    for index, tool in enumerate(tools):
        if isinstance(tool, ImageGenerationParam):
            await check_image_model(principal, tool.model, param=f"tools[{index}]")
            if tool.input_image_mask is not None:
                if tool.input_image_mask.file_id is not None:
                    # Without this check a key could read files through the mask of an image.
                    principal.require(Scope.FILES_READ)
                mask = InputImage(type="input_image", detail="auto", **tool.input_image_mask.model_dump())
                attachments = [(f"tools[{index}].input_image_mask", mask)]
                await TeamAttachments(principal.team_id).load_required(
                    attachments, can=Capabilities(inline_images=True)
                )


async def _store_searchers(
    account: UsageAccount, tools: Sequence[ToolParam], shown: Sequence[Mapping[str, Any]], choice: Any
) -> list[StoreSearcher]:
    if not any(tool.type == "file_search" for tool in tools):
        return []

    def find() -> list[StoreSearcher]:
        refuse_unusable(account.team_id, tools)
        return searchers(account, shown, choice)

    return await in_db_thread(find)


def _refuse_approval(answers: Sequence[ApprovalAnswer]) -> None:
    if any(answer.approve for answer in answers):
        message = "A request with 'generate' set to false cannot approve a tool call, because nothing would run it."
        raise InvalidValue(message, param="generate")


def restore_tools(response: Response, items: Sequence[StoredItem]) -> Toolbox:
    """Rebuild the tools of a run that is resumed by another worker.

    A server whose secrets were not stored can no longer be called.
    """
    tools = response.parameters["tools"]
    servers = mcp.decrypt_servers(response.secrets, tools)
    granted = approvals.granted_approvals(response.pk, items)
    choice = response.parameters["tool_choice"]
    search = (
        directory.search_engine(response.team_id) if any(tool["type"] in WEB_SEARCH_TYPES for tool in tools) else None
    )
    # Only background runs are resumed, and those never answer with a single JSON body.
    account = UsageAccount(team_id=response.team_id, key_id=response.api_key_id, object_id=response.pk)
    return _toolbox(
        ToolRequest(
            tools=tools,
            choice=choice,
            items=items,
            servers=servers,
            granted=granted,
            search=search,
            files=searchers(account, tools, choice),
            containers=run_containers(tools, team_id=response.team_id, key_id=response.api_key_id),
            account=account,
        )
    )


def _toolbox(request: ToolRequest) -> Toolbox:
    toolboxes: list[Toolbox] = []
    for kind in TOOLBOX_FACTORIES:
        toolboxes += kind(request, toolboxes)
    return combine(toolboxes)
