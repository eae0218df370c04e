"""Views of `/v1/chat/completions`."""

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from kernel.pagination import Order, PageRequest
from kernel.query import nested_values, reject_unknown
from kernel.validation import parse_json
from kernel.views import ApiView
from responses import chat
from responses.api.requests import info_of, principal_of, scope_of
from responses.api.views import AsyncApiView
from responses.chat import stored
from responses.chat.requests import parse_update
from tenants import scope
from tenants.models import Scope

_PAGE = ("after", "limit", "order")


def _page(query: Mapping[str, str]) -> PageRequest:
    # As at OpenAI, chat completions are listed oldest first by default, unlike all other objects.
    named = {name: query[name] for name in query}  # `**query` would return lists instead of the last values
    return PageRequest.from_query({"order": Order.ASC.value, **named})


class CreateChatCompletionView(AsyncApiView):
    """`POST /v1/chat/completions` without `stream`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        body = chat.parse_chat(parse_json(asgi["body"]))
        completion = await chat.complete(principal=principal_of(request), body=body, request=info_of(asgi))
        return Response(completion)


class ListChatCompletionsView(ApiView):
    """`GET /v1/chat/completions`: completions that were created with `store`."""

    def get(self, request: Request) -> Response:
        principal = principal_of(request)
        principal.require(Scope.CHAT_READ)
        query = request.query_params
        # OpenAI's lists of completions have no `before`.
        reject_unknown(query, page=False, filters=(*_PAGE, "model", "metadata[…]"))
        page = _page(query)
        filters = stored.CompletionFilter(model=query.get("model"), metadata=nested_values(query, "metadata"))
        with scope.team(principal.team_id):
            found = stored.list_completions(team_id=principal.team_id, filters=filters, page=page)
        return Response(found.as_list(present=stored.public_body))


class ChatCompletionView(ApiView):
    """`GET`, `POST` and `DELETE /v1/chat/completions/{id}`."""

    def get(self, request: Request, completion_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.CHAT_READ)
        reject_unknown(request.query_params, page=False)
        with scope.team(principal.team_id):
            completion = stored.get_completion(principal=principal, completion_id=completion_id)
        return Response(stored.public_body(completion))

    def post(self, request: Request, completion_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.CHAT_WRITE)
        metadata = parse_update(parse_json(scope_of(request)["body"]))
        with scope.team(principal.team_id):
            completion = stored.replace_metadata(principal=principal, completion_id=completion_id, metadata=metadata)
        return Response(stored.public_body(completion))

    def delete(self, request: Request, completion_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.CHAT_DELETE)
        with scope.team(principal.team_id):
            stored.delete_completion(
                principal=principal, completion_id=completion_id, request=info_of(scope_of(request))
            )
        return Response({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})


class ChatMessagesView(ApiView):
    """`GET /v1/chat/completions/{id}/messages`."""

    def get(self, request: Request, completion_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.CHAT_READ)
        reject_unknown(request.query_params, page=False, filters=_PAGE)
        page = _page(request.query_params)
        with scope.team(principal.team_id):
            completion = stored.get_completion(principal=principal, completion_id=completion_id)
        found = stored.list_messages(completion=completion, page=page)
        return Response(found.as_list(present=lambda message: message))
