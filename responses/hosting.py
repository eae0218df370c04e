"""The hosted tools of a response: what its request says of them, as a toolbox for its run.

`KINDS` is the table of the tools that run here. Each is a folder of the same shape in `responses.tools`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from conversations.items import StoredItem
from kernel import egress
from kernel.dbthreads import in_db_thread
from kernel.errors import InvalidValue
from responses import approvals, toolset
from responses.approvals import Answered, Granted
from responses.engine.tools import NoTools, Toolbox
from responses.models import Response
from responses.schema import CreateResponse
from responses.store import CallUpdate
from responses.tools.combined import combined
from responses.tools.mcp import request as mcp
from responses.tools.mcp.servers import Server
from responses.tools.mcp.sessions import Sessions
from responses.tools.mcp.toolbox import Approved, McpToolbox
from responses.tools.tool_search.toolbox import Shelf, searches
from responses.wire import input_items
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """The tools of a run; what becomes of the calls that waited for the request's word; and what a successor of a
    background run needs to know, encrypted."""

    toolbox: Toolbox
    calls: Sequence[CallUpdate] = ()
    secrets: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is to have. `tools` and `choice` are as the response shows them, `items` is what the model reads.

    `servers` and `granted` are what the response does not show. `answers_http`: the client waits for one JSON body.
    """

    tools: Sequence[Mapping[str, Any]]
    choice: Any
    items: Sequence[StoredItem]
    servers: Sequence[Server] = ()
    granted: Sequence[Granted] = ()
    answers_http: bool = False


def _mcp(asked: Asked, before: Sequence[Toolbox]) -> list[Toolbox]:
    if not asked.servers:
        return []
    approved = [
        Approved(
            request_id=one.request_id,
            server_label=one.request.server_label,
            name=one.request.name,
            arguments=one.request.arguments,
            definition=one.definition,
        )
        for one in asked.granted
    ]
    sessions = Sessions(egress.default())
    return [McpToolbox(asked.servers, sessions, approved=approved, answers_http=asked.answers_http)]


def _tool_search(asked: Asked, before: Sequence[Toolbox]) -> list[Toolbox]:
    """It comes last: it finds the deferred tools of the others."""
    shelves = [box for box in before if isinstance(box, Shelf)]
    return [*searches([{**tool} for tool in asked.tools], asked.choice, asked.items, shelves)]


KINDS: Sequence[Callable[[Asked, Sequence[Toolbox]], list[Toolbox]]] = (_mcp, _tool_search)


async def hosted(
    *, principal: Principal, body: CreateResponse, items: Sequence[StoredItem], response_id: str, answers_http: bool
) -> Hosted:
    """The tools of a new response. Nothing may refuse it after this: the client's word on calls is taken here, once."""
    answers = approvals.answered(input_items(body), items)
    if not body.generates:
        _refuse_approval(answers)
        return Hosted(toolbox=NoTools())
    if not (body.tools or answers):
        return Hosted(toolbox=NoTools())
    tools = body.tools or []
    servers = await mcp.servers(tools, principal=principal)
    approvals.check_labels(answers, [server.label for server in servers])
    take = partial(approvals.take, team_id=principal.team_id, response_id=response_id, answers=answers)
    word = await in_db_thread(take) if answers else approvals.Word()
    asked = Asked(
        tools=[tool.shown() for tool in tools],
        choice=toolset.shown_choice(body),
        items=items,
        servers=servers,
        granted=word.granted,
        answers_http=answers_http,
    )
    secrets = mcp.sealed(servers) if servers and body.background else ""
    return Hosted(toolbox=_toolbox(asked), calls=word.calls, secrets=secrets)


def _refuse_approval(answers: Sequence[Answered]) -> None:
    if any(answer.approve for answer in answers):
        message = "A call cannot be approved of by a request with 'generate' false: no run would make it."
        raise InvalidValue(message, param="generate")


def restored(response: Response, items: Sequence[StoredItem]) -> Toolbox:
    """The tools of a run that is taken over; servers whose secrets were not kept cannot be called any more."""
    tools = response.parameters["tools"]
    servers = mcp.unsealed(response.secrets, tools)
    granted = approvals.granted_in(response.pk, items)
    choice = response.parameters["tool_choice"]
    return _toolbox(Asked(tools=tools, choice=choice, items=items, servers=servers, granted=granted))


def _toolbox(asked: Asked) -> Toolbox:
    boxes: list[Toolbox] = []
    for kind in KINDS:
        boxes += kind(asked, boxes)
    return combined(boxes)
