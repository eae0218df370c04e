"""Endpoints of `/v1/responses` and `/v1/models`."""

from collections.abc import Sequence
from typing import Any

from rest_framework.response import Response

from conversations.api.conversations import INCLUDE, item_list
from conversations.objects import Conversation, ItemList
from conversations.selectors import public_conversation
from core.http.endpoints import ApiObject, Endpoint, Schema
from core.http.pagination import PAGE, PageRequest
from responses.api import objects
from responses.api.calls import ReplayCall, ResponseCall
from responses.api.polling import polling_headers
from responses.api.requests import REPLAY, RESPONSE_FILTERS, STREAMED, info_of
from responses.lifecycle import cancel
from responses.passthrough import compact, input_tokens, models
from responses.runs import access, selectors
from responses.runs.input_items import list_input_items
from responses.runs.selectors import ResponseFilter
from responses.schema import CreateResponse, parse_create
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

# A run can fail with any error of an upstream.
_RUN_ERRORS = (400, 401, 403, 404, 413, 424, 429, 500, 503)


def _parameters(names: Sequence[str], **schema: Any) -> Schema:
    known = CreateResponse.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    return {"type": "object", "properties": {name: known[name] for name in known if name in names}, **schema}


class ResponsesView(ApiView, path="responses"):
    """All responses of a team."""

    post = Endpoint(
        Scope.RESPONSES_WRITE,
        "Create a response",
        query=None,
        calls_model=True,
        body=CreateResponse,
        parse=parse_create,
        served_by=ResponseCall,
        stream=f"{STREAMED}; the name of each event is its `type`.",
        errors=_RUN_ERRORS,
        returns=objects.ResponseBody,
        note="JSON, or server-sent events with `stream: true`",
    )

    @Endpoint(
        Scope.RESPONSES_READ,
        "List responses",
        query=(PAGE, RESPONSE_FILTERS),
        note="extension: lists the team's stored responses, see below",
    )
    def get(self, request: ApiRequest, page: PageRequest, filters: ResponseFilter) -> objects.ResponseList:
        with scope.team(request.principal.team_id):
            found = selectors.list_responses(team_id=request.principal.team_id, filters=filters, page=page)
            bodies = dict(zip((row.pk for row in found.rows), selectors.public_bodies(found.rows), strict=True))
        return found.as_list(present=lambda row: bodies[row.pk])


class ResponseView(ApiView, path="responses/<resp:response_id>"):
    """One response."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "Retrieve a response",
        query=(INCLUDE, REPLAY),
        served_by=ReplayCall,
        stream=f"{STREAMED}: the events of the run so far, followed by live events until its end.",
        returns=objects.ResponseBody,
        note="JSON; with `stream=true` the events of the run, see below",
    )
    def get(self, request: ApiRequest, response_id: str, include: frozenset[str], **_: object) -> Response:
        principal = request.principal
        with scope.team(principal.team_id):
            response = access.get_response(
                principal=principal, response_id=response_id, annotations=selectors.PROGRESS_COLUMNS
            )
            (body,) = selectors.public_bodies([response], include=include)
        return Response(body, headers=polling_headers(response, selectors.progress_of(response)))

    @Endpoint(
        Scope.RESPONSES_DELETE,
        "Delete a response",
        query=None,
        note="a queued or active background response is cancelled first",
    )
    def delete(self, request: ApiRequest, response_id: str) -> objects.DeletedResponse:
        principal = request.principal
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id)
        cancel.delete_response(actor=principal.actor, response=response, request=info_of(request.asgi))
        return {"id": response_id, "object": "response", "deleted": True}


class CancelResponseView(ApiView, path="responses/<resp:response_id>/cancel"):
    """Cancellation of a background response."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Cancel a response",
        query=None,
        takes_no_body=True,
        note="queued and active background responses; a response that has ended is returned unchanged",
    )
    def post(self, request: ApiRequest, response_id: str) -> objects.ResponseBody:
        return cancel.cancel_response(
            principal=request.principal, response_id=response_id, request=info_of(request.asgi)
        )


class InputItemsView(ApiView, path="responses/<resp:response_id>/input_items"):
    """Input items of a response."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "List input items",
        query=(PAGE, INCLUDE),
        note="the items of the previous responses, then the response's own input",
    )
    def get(self, request: ApiRequest, response_id: str, page: PageRequest, include: frozenset[str]) -> ItemList:
        with scope.team(request.principal.team_id):
            response = access.get_response(principal=request.principal, response_id=response_id)
            found = list_input_items(response=response, page=page)
        return item_list(found, include | response.included)


class CountInputTokensView(ApiView, path="responses/input_tokens"):
    """Number of input tokens of a request."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Count input tokens",
        query=None,
        body=ApiObject("CountInputTokens", lambda: _parameters(input_tokens.PARAMETERS)),
        parse=input_tokens.parse_count,
        note="counted by the upstream if it can, otherwise estimated, see below",
    )
    async def post(self, request: ApiRequest, body: CreateResponse) -> objects.InputTokens:
        tokens = await input_tokens.count_input_tokens(principal=request.principal, body=body)
        return {"object": "response.input_tokens", "input_tokens": tokens}


class CompactConversationView(ApiView, path="responses/compact"):
    """Compaction of an input."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Compact a conversation",
        query=None,
        calls_model=True,
        body=ApiObject("CompactConversation", lambda: _parameters(compact.PARAMETERS, required=["model"])),
        parse=compact.parse_compact,
        errors=_RUN_ERRORS,
        note="a summary by the model, encrypted for the team; nothing is stored",
    )
    async def post(self, request: ApiRequest, body: CreateResponse) -> objects.CompactedBody:
        return await compact.compact(principal=request.principal, body=body, request=info_of(request.asgi))


class CancelConversationView(ApiView, path="conversations/<conv:conversation_id>/cancel"):
    """Cancellation of the run that has locked a conversation."""

    @Endpoint(
        Scope.CONVERSATIONS_WRITE,
        "Cancel the active run of a conversation",
        takes_no_body=True,
        note="extension: cancels the run that has locked the conversation, if any; returns the conversation",
    )
    def post(self, request: ApiRequest, conversation_id: str) -> Conversation:
        conversation = cancel.cancel_active_run(
            principal=request.principal, conversation_id=conversation_id, request=info_of(request.asgi)
        )
        return public_conversation(conversation)


class ModelsView(ApiView, path="models"):
    """All models that the key may use."""

    @Endpoint(
        Scope.MODELS_READ,
        "List models",
        query=None,
        note="the models that the key may use, with those that the upstream behind `*` lists, see below",
    )
    async def get(self, request: ApiRequest) -> objects.ModelList:
        return {"object": "list", "data": await models.list_models(request.principal)}


class ModelView(ApiView, path="models/<path:model>"):
    """One model."""

    @Endpoint(Scope.MODELS_READ, "Retrieve a model", query=None, note="ids may contain slashes")
    async def get(self, request: ApiRequest, model: str) -> objects.ModelBody:
        return await models.retrieve_model(request.principal, model)
