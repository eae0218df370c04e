"""Endpoints of `/v1/conversations`."""

from typing import Annotated

from django.http import QueryDict, StreamingHttpResponse
from pydantic import Field

from conversations import access, export, objects, selectors, services
from conversations.items import INCLUDABLE, MAX_ID, InputItem, project
from conversations.models import Conversation
from conversations.objects import ItemBody, ItemList
from conversations.selectors import ConversationFilter, public_conversation
from conversations.services import CheckItems
from core.db.db_threads import in_db_thread
from core.errors import InvalidValue
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PAGE, Page, PageRequest
from core.http.query import METADATA_FILTER, QueryArgument, nested_values, parameter, unix_time
from core.http.rendering import download_headers
from core.http.validation import Metadata
from core.http.wire import Wire
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView

# OpenAI's limit for one request.
MAX_ADDED = 20
_Items = Annotated[list[InputItem], Field(max_length=MAX_ADDED)]


class CreateConversation(Wire):
    """A new conversation."""

    items: _Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(Wire):
    """A change of a conversation's metadata; null removes all of it."""

    metadata: Metadata | None


class CreateItems(Wire):
    """Items to append to a conversation."""

    items: Annotated[_Items, Field(min_length=1)]


class ForkConversation(Wire):
    """Parameters of a fork. `after` is the id of the last item to share; without it, the fork shares all items."""

    after: Annotated[str, Field(max_length=MAX_ID)] | None = None


def includes(query: QueryDict) -> frozenset[str]:
    """Return the values of `include`, written as `include[]=a&include[]=b`, `include=a&include=b` or `include=a,b`."""
    # Clients differ in how they write a list into a query.
    texts = [*query.getlist("include"), *query.getlist("include[]")]
    names = [name for text in texts for name in text.split(",") if name]
    for name in names:
        if name not in INCLUDABLE:
            raise InvalidValue.unsupported(name, INCLUDABLE, param="include")
    return frozenset(names)


def item_list(page: Page[ItemBody], include: frozenset[str]) -> ItemList:
    """Return the list of items as the API shows them, with the optional fields that `include` names."""
    return page.as_list(present=lambda body: project(body, include))


INCLUDE = QueryArgument(
    "include", [parameter("include", {"type": "array", "items": {"enum": list(INCLUDABLE)}})], includes
)


_FILTERS = QueryArgument(
    "filters",
    [parameter("created_after", {"type": "integer"}), METADATA_FILTER],
    lambda query: ConversationFilter(
        created_after=unix_time(query, "created_after"), metadata=nested_values(query, "metadata")
    ),
)


class ConversationsView(ApiView, path="conversations"):
    """All conversations of a team."""

    check_items: CheckItems | None = None

    @Endpoint(
        Scope.CONVERSATIONS_WRITE,
        "Create a conversation",
        body=CreateConversation,
        note="with up to 20 items, including references",
    )
    def post(self, request: ApiRequest, body: CreateConversation) -> objects.Conversation:
        conversation = services.create_conversation(
            principal=request.principal,
            items=body.items or (),
            metadata=body.metadata or {},
            check_items=self.check_items,
        )
        return public_conversation(conversation)

    @Endpoint(
        Scope.CONVERSATIONS_READ,
        "List conversations",
        query=(PAGE, _FILTERS),
        note="extension: lists the team's conversations, see below",
    )
    def get(
        self, request: ApiRequest, page: PageRequest, filters: ConversationFilter
    ) -> ListPage[objects.Conversation]:
        with scope.team(request.principal.team_id):
            found = selectors.list_conversations(team_id=request.principal.team_id, filters=filters, page=page)
        return found.as_list(present=public_conversation)


class ConversationView(ApiView, path="conversations/<conv:conversation_id>"):
    """One conversation."""

    @Endpoint(Scope.CONVERSATIONS_READ, "Retrieve a conversation")
    def get(self, request: ApiRequest, conversation_id: str) -> objects.Conversation:
        return public_conversation(_find(request.principal, conversation_id))

    @Endpoint(Scope.CONVERSATIONS_WRITE, "Update a conversation", body=UpdateConversation, note="replaces the metadata")
    def post(self, request: ApiRequest, conversation_id: str, body: UpdateConversation) -> objects.Conversation:
        conversation = services.update_conversation(
            principal=request.principal,
            conversation_id=conversation_id,
            metadata=body.metadata or {},
        )
        return public_conversation(conversation)

    @Endpoint(Scope.CONVERSATIONS_DELETE, "Delete a conversation", note="items that responses or forks show are kept")
    def delete(self, request: ApiRequest, conversation_id: str) -> objects.DeletedConversation:
        services.delete_conversation(
            team_id=request.principal.team_id,
            actor=request.principal.actor,
            conversation_id=conversation_id,
        )
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


class ConversationItemsView(ApiView, path="conversations/<conv:conversation_id>/items"):
    """Items of a conversation."""

    check_items: CheckItems | None = None

    @Endpoint(
        Scope.CONVERSATIONS_WRITE,
        "Add items to a conversation",
        body=CreateItems,
        query=(INCLUDE,),
        note="up to 20 at a time",
    )
    def post(self, request: ApiRequest, conversation_id: str, include: frozenset[str], body: CreateItems) -> ItemList:
        added = services.append_items(
            principal=request.principal, conversation_id=conversation_id, items=body.items, check_items=self.check_items
        )
        return item_list(Page(added, has_more=False), include)

    @Endpoint(Scope.CONVERSATIONS_READ, "List items of a conversation", query=(PAGE, INCLUDE))
    def get(self, request: ApiRequest, conversation_id: str, page: PageRequest, include: frozenset[str]) -> ItemList:
        with scope.team(request.principal.team_id):
            conversation = access.get_conversation(principal=request.principal, conversation_id=conversation_id)
            found = selectors.list_items(conversation=conversation, page=page)
        return found.as_list(present=lambda placement: project(placement.item.body, include))


class ConversationItemView(ApiView, path="conversations/<conv:conversation_id>/items/<str:item_id>"):
    """One item of a conversation."""

    @Endpoint(Scope.CONVERSATIONS_READ, "Retrieve an item of a conversation", query=(INCLUDE,))
    def get(self, request: ApiRequest, conversation_id: str, item_id: str, include: frozenset[str]) -> ItemBody:
        with scope.team(request.principal.team_id):
            conversation = access.get_conversation(principal=request.principal, conversation_id=conversation_id)
            placement = access.get_placement(conversation=conversation, item_id=item_id)
        return project(placement.item.body, include)

    @Endpoint(Scope.CONVERSATIONS_WRITE, "Delete an item of a conversation", note="returns the conversation")
    def delete(self, request: ApiRequest, conversation_id: str, item_id: str) -> objects.Conversation:
        conversation = services.delete_item(
            team_id=request.principal.team_id,
            actor=request.principal.actor,
            conversation_id=conversation_id,
            item_id=item_id,
        )
        return public_conversation(conversation)


class ForkConversationView(ApiView, path="conversations/<conv:conversation_id>/fork"):
    """Forks of a conversation."""

    @Endpoint(
        Scope.CONVERSATIONS_WRITE,
        "Fork a conversation",
        body=ForkConversation,
        note="extension: a new conversation that shares the items up to `after`, or all items",
    )
    def post(self, request: ApiRequest, conversation_id: str, body: ForkConversation) -> objects.Conversation:
        fork = services.fork_conversation(
            team_id=request.principal.team_id,
            key_id=request.principal.key_id,
            conversation_id=conversation_id,
            after=body.after,
        )
        return public_conversation(fork)


class ExportConversationView(ApiView, path="conversations/<conv:conversation_id>/export"):
    """Export of a conversation."""

    @Endpoint(
        Scope.CONVERSATIONS_READ,
        "Export a conversation",
        returns="application/jsonl",
        note="extension: all items as JSON Lines",
    )
    # Asynchronous, as a long export must not occupy a thread.
    async def get(self, request: ApiRequest, conversation_id: str) -> StreamingHttpResponse:
        conversation = await in_db_thread(lambda: _find(request.principal, conversation_id))
        headers = download_headers(f"{conversation.pk}.jsonl")
        return StreamingHttpResponse(export.lines(conversation), content_type="application/jsonl", headers=headers)


def _find(principal: Principal, conversation_id: str) -> Conversation:
    with scope.team(principal.team_id):
        return access.get_conversation(principal=principal, conversation_id=conversation_id)
