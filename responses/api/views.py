"""Endpoints of `/v1/responses` and `/v1/models`."""

from collections.abc import Sequence
from typing import Any

from rest_framework.response import Response

from conversations.api.conversations import CONVERSATION, INCLUDE, ITEM
from conversations.items import project
from conversations.selectors import public_conversation
from core.http.endpoints import (
    BOOLEAN,
    INTEGER,
    METADATA,
    NULLABLE_INTEGER,
    NULLABLE_OBJECT,
    NULLABLE_STRING,
    STRING,
    UNIX_TIME,
    ApiObject,
    Endpoint,
    Schema,
)
from core.http.pagination import PAGE, PageRequest
from responses.api.calls import ReplayCall, ResponseCall
from responses.api.polling import polling_headers
from responses.api.requests import REPLAY, RESPONSE_FILTERS, STREAMED, info_of
from responses.lifecycle import cancel
from responses.models import Status
from responses.passthrough import compact, input_tokens, models
from responses.runs import access, selectors
from responses.runs.input_items import list_input_items
from responses.runs.selectors import ResponseFilter
from responses.schema import CreateResponse, parse_create
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_NUMBER: Schema = {"type": "number"}
_CACHED: Schema = {"cached_tokens": INTEGER, "cache_write_tokens": INTEGER}
_REASONING: Schema = {"reasoning_tokens": INTEGER}
_USAGE = ApiObject.of(
    "Usage",
    {
        "input_tokens": INTEGER,
        "input_tokens_details": {"type": "object", "properties": _CACHED, "required": list(_CACHED)},
        "output_tokens": INTEGER,
        "output_tokens_details": {"type": "object", "properties": _REASONING, "required": list(_REASONING)},
        "total_tokens": INTEGER,
    },
)
_RESPONSE = ApiObject.of(
    "Response",
    {
        "id": STRING,
        "object": {"const": "response"},
        "created_at": UNIX_TIME,
        "completed_at": NULLABLE_INTEGER,
        "status": {"enum": list(Status.values)},
        "background": BOOLEAN,
        "error": NULLABLE_OBJECT,
        "incomplete_details": NULLABLE_OBJECT,
        "instructions": NULLABLE_STRING,
        "max_output_tokens": NULLABLE_INTEGER,
        "max_tool_calls": NULLABLE_INTEGER,
        "model": STRING,
        "output": {"type": "array", "items": ITEM},
        "parallel_tool_calls": BOOLEAN,
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "moderation": NULLABLE_OBJECT,
        "previous_response_id": NULLABLE_STRING,
        "prompt_cache_key": NULLABLE_STRING,
        "prompt_cache_retention": NULLABLE_STRING,
        "reasoning": NULLABLE_OBJECT,
        "safety_identifier": NULLABLE_STRING,
        "service_tier": STRING,
        "store": BOOLEAN,
        "temperature": _NUMBER,
        "text": {"type": "object"},
        "tool_choice": {"type": ["string", "object"]},
        "tools": {"type": "array", "items": {"type": "object"}},
        "top_logprobs": INTEGER,
        "top_p": _NUMBER,
        "truncation": {"enum": ["auto", "disabled"]},
        "usage": {"anyOf": [_USAGE, {"type": "null"}]},
        "user": NULLABLE_STRING,
        "metadata": METADATA,
    },
)
_INPUT_TOKENS = ApiObject.of(
    "InputTokens",
    {
        "object": {"const": "response.input_tokens"},
        "input_tokens": {
            "type": "integer",
            "description": "Counted by the upstream if it can, otherwise estimated at four characters per token.",
        },
    },
)
_COMPACTED = ApiObject.of(
    "CompactedConversation",
    {
        "id": STRING,
        "object": {"const": "response.compaction"},
        "created_at": UNIX_TIME,
        "output": {
            "type": "array",
            "items": ITEM,
            "description": "The user messages and one compaction item. Use them as the beginning of the next input.",
        },
        "usage": _USAGE,
    },
)
_MODEL = ApiObject.of("Model", {"id": STRING, "object": {"const": "model"}, "created": INTEGER, "owned_by": STRING})
_MODELS = ApiObject.of("ModelList", {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}})
# A run may fail with any error of an upstream.
_RUN_ERRORS = (400, 401, 403, 404, 413, 424, 429, 500, 503)


def _parameters(names: Sequence[str], **schema: Any) -> Schema:
    known = CreateResponse.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    return {"type": "object", "properties": {name: known[name] for name in known if name in names}, **schema}


class ResponsesView(ApiView, path="responses"):
    """All responses of a team."""

    post = Endpoint(
        Scope.RESPONSES_WRITE,
        "Create a response",
        calls_model=True,
        body=CreateResponse,
        parse=parse_create,
        served_by=ResponseCall,
        stream=f"{STREAMED}; the name of each event is its `type`.",
        errors=_RUN_ERRORS,
        returns=_RESPONSE,
        note="JSON, or server-sent events with `stream: true`",
    )

    @Endpoint(
        Scope.RESPONSES_READ,
        "List responses",
        query=(PAGE, RESPONSE_FILTERS),
        returns=_RESPONSE.page(),
        note="extension: lists the team's stored responses, see below",
    )
    def get(self, request: ApiRequest, page: PageRequest, filters: ResponseFilter) -> Response:
        with scope.team(request.principal.team_id):
            found = selectors.list_responses(team_id=request.principal.team_id, filters=filters, page=page)
            outputs = selectors.outputs(found.rows)
        return Response(found.as_list(present=lambda row: selectors.public_body(row, outputs.get(row.pk, []))))


class ResponseView(ApiView, path="responses/<resp:response_id>"):
    """One response."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "Retrieve a response",
        query=(INCLUDE, REPLAY),
        served_by=ReplayCall,
        stream=f"{STREAMED}: the events of the run so far, followed by live events until its end.",
        returns=_RESPONSE,
        note="JSON; with `stream=true` the events of the run, see below",
    )
    def get(self, request: ApiRequest, response_id: str, include: frozenset[str], **_: object) -> Response:
        principal = request.principal
        with scope.team(principal.team_id):
            response = access.get_response(
                principal=principal, response_id=response_id, annotations=selectors.PROGRESS_COLUMNS
            )
            output = selectors.outputs([response]).get(response.pk, [])
        body = selectors.public_body(response, output, include=include)
        return Response(body, headers=polling_headers(response, selectors.progress_of(response)))

    @Endpoint(
        Scope.RESPONSES_DELETE,
        "Delete a response",
        returns=ApiObject.deleted("Response", "response"),
        note="a queued or active background response is cancelled first",
    )
    def delete(self, request: ApiRequest, response_id: str) -> Response:
        principal = request.principal
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id)
        cancel.delete_response(actor=principal.actor, response=response, request=info_of(request.asgi))
        return Response({"id": response_id, "object": "response", "deleted": True})


class CancelResponseView(ApiView, path="responses/<resp:response_id>/cancel"):
    """Cancellation of a background response."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Cancel a response",
        takes_no_body=True,
        returns=_RESPONSE,
        note="queued and active background responses; a response that has ended is returned unchanged",
    )
    def post(self, request: ApiRequest, response_id: str) -> Response:
        return Response(
            cancel.cancel_response(principal=request.principal, response_id=response_id, request=info_of(request.asgi))
        )


class InputItemsView(ApiView, path="responses/<resp:response_id>/input_items"):
    """Input items of a response."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "List input items",
        query=(PAGE, INCLUDE),
        returns=ITEM.page(),
        note="the items of the previous responses, then the response's own input",
    )
    def get(self, request: ApiRequest, response_id: str, page: PageRequest, include: frozenset[str]) -> Response:
        with scope.team(request.principal.team_id):
            response = access.get_response(principal=request.principal, response_id=response_id)
            found = list_input_items(response=response, page=page)
        included = include | response.included
        return Response(found.as_list(present=lambda item: project(item, included)))


class CountInputTokensView(ApiView, path="responses/input_tokens"):
    """Number of input tokens of a request."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Count input tokens",
        body=ApiObject("CountInputTokens", lambda: _parameters(input_tokens.PARAMETERS)),
        parse=input_tokens.parse_count,
        returns=_INPUT_TOKENS,
        note="counted by the upstream if it can, otherwise estimated, see below",
    )
    async def post(self, request: ApiRequest, body: CreateResponse) -> Response:
        tokens = await input_tokens.count_input_tokens(principal=request.principal, body=body)
        return Response({"object": "response.input_tokens", "input_tokens": tokens})


class CompactConversationView(ApiView, path="responses/compact"):
    """Compaction of an input."""

    @Endpoint(
        Scope.RESPONSES_WRITE,
        "Compact a conversation",
        calls_model=True,
        body=ApiObject("CompactConversation", lambda: _parameters(compact.PARAMETERS, required=["model"])),
        parse=compact.parse_compact,
        errors=_RUN_ERRORS,
        returns=_COMPACTED,
        note="a summary by the model, encrypted for the team; nothing is stored",
    )
    async def post(self, request: ApiRequest, body: CreateResponse) -> Response:
        return Response(await compact.compact(principal=request.principal, body=body, request=info_of(request.asgi)))


class CancelConversationView(ApiView, path="conversations/<conv:conversation_id>/cancel"):
    """Cancellation of the run that has locked a conversation."""

    @Endpoint(
        Scope.CONVERSATIONS_WRITE,
        "Cancel the active run of a conversation",
        takes_no_body=True,
        query=(),
        returns=CONVERSATION,
        note="extension: cancels the run that has locked the conversation, if any; returns the conversation",
    )
    def post(self, request: ApiRequest, conversation_id: str) -> Response:
        conversation = cancel.cancel_active_run(
            principal=request.principal, conversation_id=conversation_id, request=info_of(request.asgi)
        )
        return Response(public_conversation(conversation))


class ModelsView(ApiView, path="models"):
    """All models that the key may use."""

    @Endpoint(
        Scope.MODELS_READ,
        "List models",
        returns=_MODELS,
        note="the models that the key may use, with those that the upstream behind `*` lists, see below",
    )
    async def get(self, request: ApiRequest) -> Response:
        return Response({"object": "list", "data": await models.list_models(request.principal)})


class ModelView(ApiView, path="models/<path:model>"):
    """One model."""

    @Endpoint(Scope.MODELS_READ, "Retrieve a model", returns=_MODEL, note="ids may contain slashes")
    async def get(self, request: ApiRequest, model: str) -> Response:
        return Response(await models.retrieve_model(request.principal, model))
