"""Endpoints of `/v1/chat/completions`."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict, override

from core.http.endpoints import STRING, Endpoint
from core.http.objects import Deleted, Fields, ListPage, one_of
from core.http.pagination import Order, PageRequest, page_argument
from core.http.query import METADATA_FILTER, QueryArgument, nested_values, parameter
from core.http.sending import JsonAnswer
from gateway import chat
from gateway.chat import stored
from gateway.chat.messages import ROLES
from gateway.chat.requests import ChatRequest, CreateChatCompletion, UpdateChatCompletion, parse_update
from gateway.chat.stored import CompletionFilter
from responses.api.calls import Call
from responses.api.requests import FORWARDED, STREAMED, info_of
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView


class ChatCompletion(TypedDict):
    """A chat completion in OpenAI's format, as the model's server returned it."""


class ChatMessage(TypedDict):
    """A message of a stored chat completion."""

    id: str
    role: Annotated[str, one_of(*ROLES)]
    content: str | None


CompletionBody = Annotated[dict[str, Any], Fields(ChatCompletion)]
MessageBody = Annotated[dict[str, Any], Fields(ChatMessage)]
DeletedCompletion = Deleted[CompletionBody, Literal["chat.completion.deleted"]]
# As at OpenAI, chat completions are listed oldest first by default, unlike all other objects. There is no `before`.
_PAGE = page_argument(order=Order.ASC, before=False)


_FILTERS = QueryArgument(
    "filters",
    [parameter("model", STRING), METADATA_FILTER],
    lambda query: CompletionFilter(model=query.get("model"), metadata=nested_values(query, "metadata")),
)


class ChatCall(Call[ChatRequest]):
    """`POST /v1/chat/completions`."""

    @override
    async def answer(self, principal: Principal, body: ChatRequest, /) -> JsonAnswer:
        return JsonAnswer(await chat.complete(principal=principal, body=body, request=info_of(self.scope)))

    @override
    async def open(self, principal: Principal, body: ChatRequest, /) -> AsyncIterator[bytes]:
        return await chat.stream(principal=principal, body=body, request=info_of(self.scope))


class ChatCompletionsView(ApiView, path="chat/completions"):
    """All chat completions of a team."""

    post = Endpoint(
        Scope.CHAT_WRITE,
        "Create a chat completion",
        query=None,
        calls_model=True,
        body=CreateChatCompletion,
        parse=chat.parse_chat,
        served_by=ChatCall,
        stream=f"{STREAMED}, ending with `data: [DONE]`.",
        errors=FORWARDED,
        returns=CompletionBody,
        note="forwarded to the upstream, see below",
    )

    @Endpoint(
        Scope.CHAT_READ,
        "List stored chat completions",
        query=(_PAGE, _FILTERS),
        note="completions that were created with `store: true`",
    )
    def get(self, request: ApiRequest, page: PageRequest, filters: CompletionFilter) -> ListPage[CompletionBody]:
        with scope.team(request.principal.team_id):
            found = stored.list_completions(team_id=request.principal.team_id, filters=filters, page=page)
        return found.as_list(present=stored.public_body)


class ChatCompletionView(ApiView, path="chat/completions/<chatcmpl:completion_id>"):
    """One stored chat completion."""

    @Endpoint(Scope.CHAT_READ, "Retrieve a stored chat completion")
    def get(self, request: ApiRequest, completion_id: str) -> CompletionBody:
        with scope.team(request.principal.team_id):
            completion = stored.get_completion(principal=request.principal, completion_id=completion_id)
        return stored.public_body(completion)

    @Endpoint(
        Scope.CHAT_WRITE,
        "Update a stored chat completion",
        query=None,
        body=UpdateChatCompletion,
        parse=parse_update,
        note="replaces the metadata",
    )
    def post(self, request: ApiRequest, completion_id: str, body: dict[str, str]) -> CompletionBody:
        principal = request.principal
        with scope.team(principal.team_id):
            completion = stored.replace_metadata(principal=principal, completion_id=completion_id, metadata=body)
        return stored.public_body(completion)

    @Endpoint(Scope.CHAT_DELETE, "Delete a stored chat completion", query=None)
    def delete(self, request: ApiRequest, completion_id: str) -> DeletedCompletion:
        principal = request.principal
        with scope.team(principal.team_id):
            stored.delete_completion(principal=principal, completion_id=completion_id)
        return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


class ChatMessagesView(ApiView, path="chat/completions/<chatcmpl:completion_id>/messages"):
    """Messages of a stored chat completion."""

    @Endpoint(
        Scope.CHAT_READ,
        "List messages of a stored chat completion",
        query=(_PAGE,),
        note="the input messages of the completion",
    )
    def get(self, request: ApiRequest, completion_id: str, page: PageRequest) -> ListPage[MessageBody]:
        with scope.team(request.principal.team_id):
            completion = stored.get_completion(principal=request.principal, completion_id=completion_id)
        found = stored.list_messages(completion=completion, page=page)
        return found.as_list(present=lambda message: message)
