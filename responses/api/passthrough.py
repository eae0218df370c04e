"""The views that store nothing: `/v1/embeddings`, `/v1/moderations`, `/v1/responses/input_tokens` and `…/compact`."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response as Answer
from typing_extensions import override

from kernel.validation import parse_json
from responses.api.requests import info, principal_of, scope_of
from responses.api.views import AsyncApiView
from responses.passthrough import compact, embeddings_moderations, input_tokens


class CreateEmbedding(AsyncApiView):
    """`POST /v1/embeddings`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        asgi = scope_of(request)
        passed = embeddings_moderations.parse_embedding(parse_json(asgi["body"]))
        answer = await embeddings_moderations.forward(
            principal=principal_of(request), passed=passed, request=info(asgi)
        )
        return Answer(answer)


class CreateModeration(AsyncApiView):
    """`POST /v1/moderations`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        asgi = scope_of(request)
        passed = embeddings_moderations.parse_moderation(parse_json(asgi["body"]))
        answer = await embeddings_moderations.forward(
            principal=principal_of(request), passed=passed, request=info(asgi)
        )
        return Answer(answer)


class CountInputTokens(AsyncApiView):
    """`POST /v1/responses/input_tokens`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        counted = input_tokens.parse_count(parse_json(scope_of(request)["body"]))
        tokens = await input_tokens.count_input_tokens(principal=principal_of(request), request=counted)
        return Answer({"object": "response.input_tokens", "input_tokens": tokens})


class CompactConversation(AsyncApiView):
    """`POST /v1/responses/compact`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        asgi = scope_of(request)
        body = compact.parse_compact(parse_json(asgi["body"]))
        return Answer(await compact.compact(principal=principal_of(request), body=body, request=info(asgi)))
