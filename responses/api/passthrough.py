"""Views that store nothing: `/v1/embeddings`, `/v1/moderations`, `/v1/responses/input_tokens` and `…/compact`."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from kernel.validation import parse_json
from responses.api.requests import info_of, principal_of, scope_of
from responses.api.views import AsyncApiView
from responses.passthrough import compact, embeddings_moderations, input_tokens


class CreateEmbeddingView(AsyncApiView):
    """`POST /v1/embeddings`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        passed = embeddings_moderations.parse_embedding(parse_json(asgi["body"]))
        result = await embeddings_moderations.forward(
            principal=principal_of(request), passed=passed, request=info_of(asgi)
        )
        return Response(result)


class CreateModerationView(AsyncApiView):
    """`POST /v1/moderations`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        passed = embeddings_moderations.parse_moderation(parse_json(asgi["body"]))
        result = await embeddings_moderations.forward(
            principal=principal_of(request), passed=passed, request=info_of(asgi)
        )
        return Response(result)


class CountInputTokensView(AsyncApiView):
    """`POST /v1/responses/input_tokens`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = input_tokens.parse_count(parse_json(scope_of(request)["body"]))
        tokens = await input_tokens.count_input_tokens(principal=principal_of(request), body=body)
        return Response({"object": "response.input_tokens", "input_tokens": tokens})


class CompactConversationView(AsyncApiView):
    """`POST /v1/responses/compact`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        body = compact.parse_compact(parse_json(asgi["body"]))
        return Response(await compact.compact(principal=principal_of(request), body=body, request=info_of(asgi)))
