"""Views of `/v1/responses` and `/v1/models`."""

import asyncio
from typing import Any

from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from conversations.api.requests import includes
from conversations.items import project
from kernel.errors import ApiError, NotFound, ServerError
from kernel.pagination import PageRequest
from kernel.query import reject_unknown
from kernel.validation import parse_json
from kernel.views import ApiView
from responses.api.polling import polling_headers
from responses.api.requests import (
    RETRIEVAL,
    flag,
    info_of,
    principal_of,
    reject_body,
    response_filter,
    scope_of,
    sequence_number,
)
from responses.engine.steps import RunEnded
from responses.lifecycle import cancel, create
from responses.models import Mode
from responses.models import Response as ResponseRow
from responses.runs import access, progress, selectors
from responses.schema import parse_create
from tenants import directory, scope
from tenants.authentication import authenticate
from tenants.models import Scope


class AsyncApiView(ApiView):
    """DRF view with an asynchronous handler: the same requests, errors and renderer, without a thread."""

    @override
    async def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        # DRF's own dispatch is synchronous; this one follows it and awaits authentication and handler.
        self.args, self.kwargs = args, kwargs
        self.request = wrapped = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        try:
            # DRF expects the authenticated user here; ours is a Principal.
            wrapped.user = await authenticate(request.headers.get("Authorization", ""))  # type: ignore[assignment]
            result = await self.post(wrapped, *args, **kwargs)
        except Exception as error:  # converted by `kernel.http.exception_handler`
            result = self.handle_exception(error)
        return self.finalize_response(wrapped, result, *args, **kwargs)

    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Handle the request."""
        raise NotImplementedError


class CreateResponseView(AsyncApiView):
    """`POST /v1/responses` without `stream`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        body = parse_create(parse_json(asgi["body"]))
        arguments: dict[str, Any] = {"principal": principal_of(request), "body": body, "request": info_of(asgi)}
        if body.background:
            return Response(await create.queue_response(**arguments, mode=Mode.JSON))
        run = await create.create_response(**arguments, mode=Mode.JSON)
        try:
            end = await run.finished()
        except asyncio.CancelledError:
            # The client has disconnected; the runner decides if the run continues without it.
            run.detach()
            raise
        if (error := _http_error(end)) is not None:
            raise error
        return Response(end.response)


def _http_error(end: RunEnded) -> ApiError | None:
    # The response of a failed run is stored like any other, but OpenAI reports the failure as an HTTP error here.
    if end.ending.status == "failed":
        failure = end.ending.failure
        return failure.as_api_error() if failure else ServerError()
    if end.ending.status == "cancelled":
        return ServerError("The response was cancelled.")
    return None


class ListResponsesView(ApiView):
    """`GET /v1/responses`."""

    def get(self, request: Request) -> Response:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        page = PageRequest.from_query(request.query_params)
        filters = response_filter(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_responses(team_id=principal.team_id, filters=filters, page=page)
            outputs = selectors.outputs(found.rows)
        return Response(found.as_list(present=lambda row: selectors.public_body(row, outputs.get(row.pk, []))))


def _check_retrieval(query: QueryDict) -> None:
    # Parameters of streams are validated for JSON requests as well: an invalid value is a mistake in any case.
    reject_unknown(query, page=False, filters=RETRIEVAL)
    flag(query, "stream", default=False)
    flag(query, "include_obfuscation", default=True)
    sequence_number(query)


class ResponseView(ApiView):
    """`GET` and `DELETE /v1/responses/{id}`."""

    def get(self, request: Request, response_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        _check_retrieval(request.query_params)
        include = includes(request.query_params)
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id, annotations=progress.COLUMNS)
            output = selectors.outputs([response]).get(response.pk, [])
        body = selectors.public_body(response, output, include=include)
        return Response(body, headers=polling_headers(response, progress.progress_of(response)))

    def delete(self, request: Request, response_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_DELETE)
        with scope.team(principal.team_id):
            response: ResponseRow = access.get_response(principal=principal, response_id=response_id)
        cancel.delete_response(actor=principal.actor, response=response, request=info_of(scope_of(request)))
        return Response({"id": response_id, "object": "response", "deleted": True})


class CancelResponseView(ApiView):
    """`POST /v1/responses/{id}/cancel`."""

    def post(self, request: Request, response_id: str) -> Response:
        principal, asgi = principal_of(request), scope_of(request)
        principal.require(Scope.RESPONSES_WRITE)
        reject_body(asgi)
        return Response(cancel.cancel_response(principal=principal, response_id=response_id, request=info_of(asgi)))


class InputItemsView(ApiView):
    """`GET /v1/responses/{id}/input_items`."""

    def get(self, request: Request, response_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.RESPONSES_READ)
        reject_unknown(request.query_params, filters=("include", "include[]"))
        include = includes(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            response = access.get_response(principal=principal, response_id=response_id)
            found = selectors.list_input_items(response=response, page=page)
        included = include | response.included
        return Response(found.as_list(present=lambda item: project(item, included)))


class ListModelsView(ApiView):
    """`GET /v1/models`."""

    def get(self, request: Request) -> Response:
        principal = principal_of(request)
        principal.require(Scope.MODELS_READ)
        return Response({"object": "list", "data": directory.list_models(principal)})


class ModelView(ApiView):
    """`GET /v1/models/{id}`; ids may contain slashes."""

    def get(self, request: Request, model: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.MODELS_READ)
        for listed in directory.list_models(principal):
            if listed["id"] == model:
                return Response(listed)
        raise NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")
