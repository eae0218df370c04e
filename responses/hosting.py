"""The hosted tools of a response: what its request says of them, as a toolbox for its run.

`KINDS` is the table of the tools that run here. Each is a folder of the same shape in `responses.tools`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from conversations.items import StoredItem
from kernel import egress
from kernel.dbthreads import in_db_thread
from responses import approvals, toolset
from responses.approvals import Granted
from responses.engine.tools import NoTools, Toolbox
from responses.models import Response
from responses.schema import CreateResponse
from responses.store import CallUpdate
from responses.tools.combined import combined
from responses.tools.mcp import request as mcp
from responses.tools.mcp.servers import Server
from responses.tools.mcp.sessions import Sessions
from responses.tools.mcp.toolbox import Approved, McpToolbox
from responses.tools.tool_search.toolbox import searches
from responses.wire import input_items
from tenants.capabilities import Capabilities
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """The tools of a run; what becomes of the calls that waited for the request's word; and what a successor of a
    background run needs to know, encrypted."""

    toolbox: Toolbox
    calls: Sequence[CallUpdate] = ()
    secrets: str = ""


async def hosted(
    *,
    principal: Principal,
    body: CreateResponse,
    items: Sequence[StoredItem],
    can: Capabilities,
    response_id: str,
    answers_http: bool,
) -> Hosted:
    """The tools of a new response. Nothing may refuse it after this: the client's word on calls is taken here, once."""
    if not body.generates:
        return Hosted(toolbox=NoTools())
    servers = await mcp.servers(body.tools or (), principal=principal)
    answers = approvals.answered(input_items(body), items)
    shown = [tool.shown() for tool in body.tools or ()]
    search = searches(shown, toolset.shown_choice(body), items)
    if not servers and not answers:
        return Hosted(toolbox=combined(search))
    approvals.check_labels(answers, [server.label for server in servers])
    take = partial(approvals.take, team_id=principal.team_id, response_id=response_id, answers=answers)
    word = await in_db_thread(take) if answers else approvals.Word()
    boxes = _toolboxes(servers, word.granted, sees_images=can.vision, answers_http=answers_http)
    return Hosted(
        toolbox=combined([*boxes, *search]), calls=word.calls, secrets=mcp.sealed(servers) if body.background else ""
    )


def restored(response: Response, items: Sequence[StoredItem], can: Capabilities) -> Toolbox:
    """The tools of a run that is taken over; those whose secrets were not kept cannot be called any more."""
    servers = mcp.unsealed(response.secrets, response.parameters["tools"])
    granted = approvals.granted_in(response.pk, items)
    shown, choice = response.parameters["tools"], response.parameters["tool_choice"]
    boxes = _toolboxes(servers, granted, sees_images=can.vision, answers_http=False)
    return combined([*boxes, *searches(shown, choice, items)])


def _toolboxes(
    servers: Sequence[Server], granted: Sequence[Granted], *, sees_images: bool, answers_http: bool
) -> list[Toolbox]:
    if not servers:
        return []
    approved = [
        Approved(
            request_id=one.request_id,
            server_label=one.request.server_label,
            name=one.request.name,
            arguments=one.request.arguments,
            definition=one.definition,
        )
        for one in granted
    ]
    sessions = Sessions(egress.default())
    return [McpToolbox(servers, sessions, approved=approved, sees_images=sees_images, answers_http=answers_http)]
