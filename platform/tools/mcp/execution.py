"""The tools of the MCP servers of one run: lists them, calls them and requests approval."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from conversations.items import UPSTREAM_CALL_ID
from core.errors import (
    ExternalConnectorError,
    Failure,
    InvalidPrompt,
    McpServerForbidden,
    McpServerUnauthorized,
    ServerError,
)
from core.ids import new_id
from engine.calls.client_tools import upstream_name
from engine.calls.item_events import after_result, before_result
from engine.calls.outcomes import (
    CallDecision,
    Execute,
    InputRequired,
    Refuse,
    RequireApproval,
    ToolLimits,
    ToolResult,
    parse_object,
)
from engine.calls.toolbox import HostedTool
from engine.events.types import Body, OutputItemAdded, OutputItemDone
from engine.state import OutputItem, RunContext, RunState
from engine.steps import CallRecord, Emitted, ToolsPrepared
from engine.turn import Call, FunctionTool, ToolInput
from responses.requests.tool_offer import ToolOffer
from responses.tools.approvals import DecidedApproval
from tools.mcp import results
from tools.mcp.catalogue import AvailableTool, ToolCatalogue
from tools.mcp.questions import McpQuestions
from tools.mcp.servers import ListedTool, RemoteServer
from tools.mcp.sessions import JsonRpcCode, McpSessions, ServerFailed

KIND = "mcp"
# Statuses that the client can act on, by sending other credentials: they become the status of its own request.
_PASSED_ON = (McpServerUnauthorized.status, McpServerForbidden.status)
_CHANGED = "The call was not made: the tool has changed since it was approved. Request approval again."
_GONE = "The call was not made: the server no longer offers this tool."
_CANNOT_WAIT = "Only a background response can wait for a person's answer."


class McpTools(HostedTool):
    """Lists the tools of MCP servers, calls them and requests approval.

    A server whose tools cannot be listed fails the run, unless it `continues_without_servers` that fail.
    """

    kind = KIND
    concurrency = 8

    def __init__(
        self,
        servers: Sequence[RemoteServer],
        sessions: McpSessions,
        *,
        decided: Sequence[DecidedApproval] = (),
        requires_approval: frozenset[str] = frozenset(),
        continues_without_servers: bool = False,
    ) -> None:
        self._catalogue = ToolCatalogue(servers)
        self._sessions = sessions
        self._decided = decided
        self._approved = {approval.request_id: approval for approval in decided if approval.approve}
        self._requires_approval = requires_approval
        self._continues_without_servers = continues_without_servers
        self._fresh: dict[str, list[ListedTool]] = {}
        self._choice: Any = None
        self._state = RunState()

    # -- before the first turn -----------------------------------------------------------------------------------------

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """List the tools that are not known yet, and return the approved calls."""
        self._state, self._choice = state, context.parameters.get("tool_choice")
        self._sessions.answers_questions = context.call_wait_seconds is not None
        self._catalogue.restore([*context.items, *state.context_items()])
        missing = self._catalogue.unlisted()
        # All servers are asked at the same time, but reported in the order of the tools.
        listings = {server.label: asyncio.create_task(self._sessions.list_tools(server)) for server in missing}
        try:
            for server in missing:
                index = state.next_output_index
                body: Body = {
                    "id": new_id("mcpl"),
                    "type": "mcp_list_tools",
                    "server_label": server.label,
                    "tools": [],
                }
                opened = OutputItemAdded(output_index=index, item=body)
                yield Emitted([opened, *before_result(body, output_index=index)])
                failure = None
                try:
                    listed = self._fresh[server.label] = await listings[server.label]
                    body = {**body, "tools": [tool.shown() for tool in self._catalogue.add_listing(server, listed)]}
                except ServerFailed as failed:
                    body = {**body, "error": _listing_error(server, failed)}
                    if not self._continues_without_servers:
                        status = failed.status if failed.status in _PASSED_ON else ExternalConnectorError.status
                        failure = Failure.of(ServerError(body["error"], param="tools"), status=status)
                events = [*after_result(body, output_index=index), OutputItemDone(output_index=index, item=body)]
                yield ToolsPrepared(events=events, items=[OutputItem(body=body)], failure=failure)
        finally:
            for task in listings.values():
                task.cancel()
            await asyncio.gather(*listings.values(), return_exceptions=True)
        # A resumed run skips the calls that were started before the interruption.
        begun: set[str | None] = {pending.call.call_id for pending in state.pending}
        begun |= {item.body.get("approval_request_id") for item in state.output}
        calls = [
            CallRecord(call=approval.call, turn=approval.turn, kind=KIND, state="pending")
            for approval in self._approved.values()
            if approval.request_id not in begun
        ]
        # Requests of clients contain the decisions as items. The decisions for which the run has waited become part of
        # the history.
        decisions = [
            {
                "id": new_id("mcpa"),
                "type": "mcp_approval_response",
                "approval_request_id": decision.request_id,
                "approve": decision.approve,
                "reason": decision.reason or None,
            }
            for decision in self._decided
            if decision.has_waited and decision.request_id not in begun
        ]
        failure = None
        # The request was accepted before the server's tools were known, so a forced tool may turn out to be missing.
        match self._choice:
            case {"type": "mcp", "server_label": str() as label, "name": str() as name} if self._is_first_turn:
                if self._catalogue.find(upstream_name(label, name)) is None:
                    message = f"Tool choice '{name}' was not found on the MCP server '{label}'."
                    failure = Failure.of(InvalidPrompt(message, param="tool_choice"))
        if calls or decisions or failure:
            items = [OutputItem(body=item) for item in decisions]
            yield ToolsPrepared(events=[], items=items, calls=calls, failure=failure)

    @property
    def _is_first_turn(self) -> bool:
        # Discarded turns do not count: the model has not answered yet.
        return self._state.turn == self._state.discarded

    # -- turns ---------------------------------------------------------------------------------------------------------

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return self._catalogue.functions(self._choice, first_turn=self._is_first_turn)

    def deferred(self) -> list[ToolOffer]:
        """Return the tools that a search may find."""
        return [
            ToolOffer(
                tool=entry.function(name), label=(KIND, entry.server.label), deferred=True, shown=entry.search_result
            )
            for name, entry in self._catalogue.deferred_tools(self._choice).items()
        ]

    def load(self, names: Iterable[str]) -> None:
        """Offer the tools that a search has found."""
        self._catalogue.load(names)

    @override
    def owns(self, name: str) -> bool:
        # Includes approved calls: their tool may have disappeared since.
        return bool(self._catalogue.find(name)) or any(
            name == approval.call.name for approval in self._approved.values()
        )

    @override
    def may_repeat(self, name: str) -> bool:
        known = self._catalogue.find(name)
        return known is not None and (known.tool.may_repeat or known.server.honours_effect_ids)

    @override
    def limits(self) -> ToolLimits:
        # The session applies the same limit first and gives a better error message.
        return ToolLimits(seconds=self._sessions.timeouts.call + 10, characters=2 * results.MAX_CHARACTERS)

    @override
    def decide(self, call: Call) -> CallDecision:
        known = self._catalogue.find(call.name)
        # Models may call tools they were not offered: they know them from an earlier turn, or guess.
        if known is None or not self._catalogue.is_offered(known, self._choice, first_turn=self._is_first_turn):
            return Refuse(f"error: there is no tool named {call.name!r}")
        # A call with invalid arguments is not worth a user's attention; the loop answers it with an error.
        is_asked = known.server.asks_for(known.tool, required=self._requires_approval)
        if not is_asked or parse_object(call.arguments) is None:
            return Execute()
        item = {
            "id": new_id("mcpr"),
            "type": "mcp_approval_request",
            "server_label": known.server.label,
            "name": known.tool.name,
            "arguments": call.arguments,
        }
        return RequireApproval(item, definition=known.definition)

    # -- calls ---------------------------------------------------------------------------------------------------------

    @override
    def open_item(self, call: Call) -> Body:
        approved, known = self._approved.get(call.call_id), self._catalogue.find(call.name)
        body = super().open_item(call)
        if approved is not None:
            label, name = approved.request.server_label, approved.request.name
            return {**body, "server_label": label, "name": name, "approval_request_id": approved.request_id}
        label, name = (known.server.label, known.tool.name) if known else ("", call.name)
        return {**body, "server_label": label, "name": name}

    @override
    async def call(self, call: Call) -> ToolResult | InputRequired:
        answered = _answered(call.input)
        if answered is not None and answered.open:
            # The server gets all answers at once.
            return InputRequired(answered.stored())
        try:
            known = await self._known_tool(call)
            arguments = parse_object(call.arguments) or {}
            result = await self._sessions.call(
                known.server, known.tool.name, arguments, effect_id=call.effect_id, answered=answered
            )
            if isinstance(result, McpQuestions):
                return self._asked(result)
        except ServerFailed as failure:
            if failure.code == JsonRpcCode.MISSING_CAPABILITY and not self._sessions.answers_questions:
                # The tool would have asked a question, but the server saw that nobody answers it.
                failure = ServerFailed.protocol(f"{failure.message}\n{_CANNOT_WAIT}", failure.code)
            return results.from_failure(failure)
        return results.from_result(result, known.server)

    def _asked(self, questions: McpQuestions) -> InputRequired:
        if self._sessions.answers_questions:
            return InputRequired(questions.stored())
        asked = "\n".join(question.message for question in questions.open.values())
        raise ServerFailed.protocol(f"The tool asked for input: {asked}\n{_CANNOT_WAIT}", JsonRpcCode.SERVER_ERROR)

    async def _known_tool(self, call: Call) -> AvailableTool:
        approved = self._approved.get(call.call_id)
        if approved is not None and approved.request.server_label not in self._fresh:
            # The user approved the tool as it was described then: list it again, unless that was just done.
            server = self._catalogue.servers[approved.request.server_label]
            self._fresh[server.label] = await self._sessions.list_tools(server)
            self._catalogue.add_listing(server, self._fresh[server.label])
        known = self._catalogue.find(call.name)
        if known is None:
            raise ServerFailed.protocol(_GONE, JsonRpcCode.INVALID_PARAMS)
        if approved is not None and known.definition != approved.definition:
            raise ServerFailed.protocol(_CHANGED, JsonRpcCode.INVALID_PARAMS)
        return known

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        if result.error is not None and "error" not in result.fields:
            # The loop itself fails calls that time out or have invalid arguments; their text is in the form of MCP.
            content = [{"type": "text", "text": result.output}]
            result = replace(result, fields={"error": {"type": "mcp_tool_execution_error", "content": content}})
        approved = self._approved.get(call.call_id)
        if approved is not None and approved.request.upstream_call_id:
            # The call itself has the id of its approval request.
            body = {**body, UPSTREAM_CALL_ID: approved.request.upstream_call_id}
        return super().close_items(body, call, result)

    @override
    async def close(self) -> None:
        """End the sessions."""
        await self._sessions.close()


def _listing_error(server: RemoteServer, failed: ServerFailed) -> str:
    """Return the error of a listing in OpenAI's words, followed by the cause if its status does not name it."""
    cause = failed.message
    if failed.status not in _PASSED_ON:
        cause = f"Http status code: 424 (Failed Dependency). {cause}"
    return results.truncate(f"Error retrieving tool list from MCP server: '{server.label}'. {cause}")


def _answered(given: ToolInput | None) -> McpQuestions | None:
    """Return the questions of the call before, with the answer to the last one; None if there were no questions."""
    return None if given is None else McpQuestions.restored(given.question).answered(given.answer)
