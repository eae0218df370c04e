"""The views of `/v1/responses` and `/v1/models`: parse, one call, present."""

import asyncio
from typing import Any

from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.response import Response as Answer
from typing_extensions import override

from conversations.api.requests import includes
from conversations.items import project
from kernel.errors import ApiError, NotFound, ServerError
from kernel.pagination import PageRequest
from kernel.query import reject_unknown
from kernel.validation import parse_json
from kernel.views import ApiView
from responses.api import polling
from responses.api.requests import (
    RETRIEVAL,
    flag,
    info,
    principal_of,
    refuse_body,
    response_filter,
    scope_of,
    sequence_number,
)
from responses.engine.steps import RunEnded
from responses.lifecycle import cancel, create
from responses.models import Mode, Response
from responses.runs import access, progress, selectors
from responses.schema import parse_create
from tenants import directory, scope
from tenants.authentication import authenticate
from tenants.models import Scope


class AsyncApiView(ApiView):
    """DRF's view for handlers that wait: the same requests, errors and renderer, and no thread."""

    @override
    async def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """DRF's dispatch, with the authentication awaited."""
        self.args, self.kwargs = args, kwargs
        self.request = wrapped = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        try:
            # DRF calls whoever authentication found the user; ours is a Principal.
            wrapped.user = await authenticate(request.headers.get("Authorization", ""))  # type: ignore[assignment]
            answer = await self.post(wrapped, *args, **kwargs)
        except Exception as error:  # DRF's own handler decides what becomes of it
            answer = self.handle_exception(error)
        return self.finalize_response(wrapped, answer, *args, **kwargs)

    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        """The view's work."""
        raise NotImplementedError


class CreateResponse(AsyncApiView):
    """`POST /v1/responses` without `stream`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        asgi = scope_of(request)
        body = parse_create(parse_json(asgi["body"]))
        asked: dict[str, Any] = {"principal": principal_of(request), "body": body, "request": info(asgi)}
        if body.background:
            return Answer(await create.queue_response(**asked, mode=Mode.JSON))
        run = await create.create_response(**asked, mode=Mode.JSON)
        try:
            end = await run.finished()
        except asyncio.CancelledError:
            run.detach()
            raise
        if (error := _http_error(end)) is not None:
            raise error
        return Answer(end.response)


def _http_error(end: RunEnded) -> ApiError | None:
    """A failed run has a stored response, but a client that waits for JSON is told by the status."""
    if end.ending.status == "failed":
        failure = end.ending.failure
        return failure.as_api_error() if failure else ServerError()
    if end.ending.status == "cancelled":
        return ServerError("The response was cancelled.")
    return None


class ListResponses(ApiView):
    """`GET /v1/responses`."""

    def get(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        page = PageRequest.from_query(request.query_params)
        narrow = response_filter(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_responses(team_id=principal.team_id, narrow=narrow, page=page)
            outputs = selectors.outputs(found.rows)
        return Answer(found.as_list(present=lambda row: selectors.public_body(row, outputs.get(row.pk, []))))


def _check_retrieval(query: QueryDict) -> None:
    """What is said of a stream must make sense even where none is asked for."""
    reject_unknown(query, page=False, filters=RETRIEVAL)
    flag(query, "stream", default=False)
    flag(query, "include_obfuscation", default=True)
    sequence_number(query)


class OneResponse(ApiView):
    """`GET` and `DELETE /v1/responses/{id}`."""

    def get(self, request: Request, response_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        _check_retrieval(request.query_params)
        include = includes(request.query_params)
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id, also=progress.COLUMNS)
            output = selectors.outputs([response]).get(response.pk, [])
        body = selectors.public_body(response, output, include=include)
        return Answer(body, headers=polling.headers(response, progress.of(response)))

    def delete(self, request: Request, response_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_DELETE)
        with scope.team(principal.team_id):
            response: Response = access.get_response(principal=principal, response_id=response_id)
        create.delete_response(actor=principal.actor, response=response, request=info(scope_of(request)))
        return Answer({"id": response_id, "object": "response", "deleted": True})


class CancelResponse(ApiView):
    """`POST /v1/responses/{id}/cancel`."""

    def post(self, request: Request, response_id: str) -> Answer:
        principal, asgi = principal_of(request), scope_of(request)
        principal.require(Scope.RESPONSES_WRITE)
        refuse_body(asgi)
        return Answer(cancel.cancel_response(principal=principal, response_id=response_id, request=info(asgi)))


class InputItems(ApiView):
    """`GET /v1/responses/{id}/input_items`."""

    def get(self, request: Request, response_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        reject_unknown(request.query_params, filters=("include", "include[]"))
        include = includes(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id)
            found = selectors.list_input_items(response=response, page=page)
        asked = include | response.included
        return Answer(found.as_list(present=lambda item: project(item, asked)))


class ListModels(ApiView):
    """`GET /v1/models`."""

    def get(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.MODELS_READ)
        return Answer({"object": "list", "data": directory.list_models(principal)})


class OneModel(ApiView):
    """`GET /v1/models/{id}`; ids may contain slashes."""

    def get(self, request: Request, model: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.MODELS_READ)
        for listed in directory.list_models(principal):
            if listed["id"] == model:
                return Answer(listed)
        raise NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")
