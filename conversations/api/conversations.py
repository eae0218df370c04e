"""Views of `/v1/conversations`."""

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header
from rest_framework.request import Request
from rest_framework.response import Response as Answer

from conversations import access, export, selectors, services
from conversations.api.requests import body_of, conversation_filter, includes, principal_of, request_id_of
from conversations.api.schema import CreateConversation, CreateItems, ForkConversation, UpdateConversation, read
from conversations.items import project
from conversations.models import Conversation, Placement
from conversations.selectors import public_conversation
from conversations.services import CheckItems
from kernel.db_threads import in_db_thread
from kernel.pagination import Page, PageRequest
from kernel.query import reject_unknown
from kernel.views import ApiView
from tenants import scope
from tenants.authentication import authenticate
from tenants.models import Scope
from tenants.principal import Principal

_INCLUDE = ("include", "include[]")


class Conversations(ApiView):
    """`GET` and `POST /v1/conversations`."""

    check_items: CheckItems | None = None

    def get(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_READ)
        filters = conversation_filter(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_conversations(team_id=principal.team_id, filters=filters, page=page)
        return Answer(found.as_list(present=public_conversation))

    def post(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = read(CreateConversation, body_of(request))
        conversation = services.create_conversation(
            principal=principal, items=body.items or (), metadata=body.metadata or {}, check_items=self.check_items
        )
        return Answer(public_conversation(conversation))


class OneConversation(ApiView):
    """`GET`, `POST` and `DELETE /v1/conversations/{id}`."""

    def get(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_READ)
        reject_unknown(request.query_params, page=False)
        return Answer(public_conversation(_find(principal, conversation_id)))

    def post(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = read(UpdateConversation, body_of(request))
        conversation = services.update_conversation(
            principal=principal,
            conversation_id=conversation_id,
            metadata=body.metadata or {},
            request_id=request_id_of(request),
        )
        return Answer(public_conversation(conversation))

    def delete(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_DELETE)
        reject_unknown(request.query_params, page=False)
        services.delete_conversation(
            team_id=principal.team_id,
            actor=principal.actor,
            conversation_id=conversation_id,
            request_id=request_id_of(request),
        )
        return Answer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


class Items(ApiView):
    """`GET` and `POST /v1/conversations/{id}/items`."""

    check_items: CheckItems | None = None

    def get(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_READ)
        reject_unknown(request.query_params, filters=_INCLUDE)
        include = includes(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            conversation = access.get_conversation(principal=principal, conversation_id=conversation_id)
            found = selectors.list_items(conversation=conversation, page=page)

        def present(placement: Placement) -> dict[str, Any]:
            return project(placement.item.body, include)

        return Answer(found.as_list(present=present))

    def post(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False, filters=_INCLUDE)
        include = includes(request.query_params)
        body = read(CreateItems, body_of(request))
        added = services.append_items(
            principal=principal, conversation_id=conversation_id, items=body.items, check_items=self.check_items
        )
        return Answer(Page(added, has_more=False).as_list(present=lambda item: project(item, include)))


class OneItem(ApiView):
    """`GET` and `DELETE /v1/conversations/{id}/items/{item_id}`."""

    def get(self, request: Request, conversation_id: str, item_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_READ)
        reject_unknown(request.query_params, page=False, filters=_INCLUDE)
        include = includes(request.query_params)
        with scope.team(principal.team_id):
            conversation = access.get_conversation(principal=principal, conversation_id=conversation_id)
            placement = access.get_placement(conversation=conversation, item_id=item_id)
        return Answer(project(placement.item.body, include))

    def delete(self, request: Request, conversation_id: str, item_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        conversation = services.delete_item(
            team_id=principal.team_id,
            actor=principal.actor,
            conversation_id=conversation_id,
            item_id=item_id,
            request_id=request_id_of(request),
        )
        return Answer(public_conversation(conversation))


class Fork(ApiView):
    """`POST /v1/conversations/{id}/fork`."""

    def post(self, request: Request, conversation_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = read(ForkConversation, body_of(request))
        fork = services.fork_conversation(
            team_id=principal.team_id, key_id=principal.key_id, conversation_id=conversation_id, after=body.after
        )
        return Answer(public_conversation(fork))


async def export_items(request: ASGIRequest, conversation_id: str) -> StreamingHttpResponse:
    """`GET /v1/conversations/{id}/export`. Asynchronous, as a long export must not occupy a thread."""
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(Scope.CONVERSATIONS_READ)
    reject_unknown(request.GET, page=False)
    conversation = await in_db_thread(lambda: _find(principal, conversation_id))
    headers = {
        # The function returns None only for an inline disposition without a file name.
        "Content-Disposition": content_disposition_header(as_attachment=True, filename=f"{conversation.pk}.jsonl")
        or "",
        # Items hold text of the team's members, which must not run as a page in another member's browser.
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingHttpResponse(export.lines(conversation), content_type="application/jsonl", headers=headers)


def _find(principal: Principal, conversation_id: str) -> Conversation:
    with scope.team(principal.team_id):
        return access.get_conversation(principal=principal, conversation_id=conversation_id)
