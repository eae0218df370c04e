"""Pages of lists: complete in every direction, and read from an index."""

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext

from containers import selectors as containers
from containers.models import Container, ContainerFile
from conversations import selectors as conversations
from conversations.files import storage as files
from conversations.models import Conversation, File, FileState, Item, Placement, Section
from conversations.selectors import ConversationFilter
from core.errors import NotFound
from core.http.pagination import Order, Page, PageRequest
from gateway.batches import selectors as batches
from gateway.chat import stored as chat
from gateway.chat.stored import CompletionFilter
from responses.models import ChatCompletion, Mode, Response, Status
from responses.models.batches import Batch
from responses.models.vector_stores import VectorStore, VectorStoreFile
from responses.runs import selectors
from responses.runs.selectors import ResponseFilter
from responses.webhooks import services as webhooks
from responses.webhooks.models import WebhookEndpoint
from skills import selectors as skills
from skills.models import Skill, SkillVersion
from tenants import directory, scope
from tests.support.api import Caller, MakeCaller
from tools.vectors import selectors as vectors

pytestmark = pytest.mark.usefixtures("database")
START = datetime(2026, 1, 1, tzinfo=UTC)
SEEDS = range(5)


def walk(read: Callable[[PageRequest], list[str]], *, order: Order, limit: int, back: bool = False) -> list[str]:
    """Return the ids of all pages. `back` reads the list from its end, using `before`."""
    seen: list[str] = []
    if back:
        seen = read(PageRequest(order=Order.DESC if order is Order.ASC else Order.ASC, limit=1))
    while True:
        before, after = (seen[0], None) if back else (None, seen[-1] if seen else None)
        found = read(PageRequest(order=order, limit=limit, before=before, after=after))
        if not found:
            return seen
        seen = found + seen if back else seen + found


# -- conversations: the general case -----------------------------------------------------------------------------------


def add_conversations(caller: Caller, count: int, chance: random.Random) -> list[str]:
    """Create conversations of which many have equal times; return their ids, oldest first."""
    rows = [
        Conversation(
            id=f"{caller.team.pk.replace('team', 'conv')}{number:03}",
            team=caller.team,
            created_at=START + timedelta(seconds=chance.randrange(4)),
        )
        for number in chance.sample(range(1000), count)
    ]
    Conversation.objects.bulk_create(rows)
    return [row.pk for row in sorted(rows, key=lambda row: (row.created_at, row.pk))]


def list_conversations(caller: Caller, page: PageRequest) -> list[str]:
    rows = conversations.list_conversations(team_id=caller.team.pk, filters=ConversationFilter(), page=page).rows
    return [row.pk for row in rows]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("seed", SEEDS)
def test_paging_lists_each_row_once_despite_equal_times(caller: Caller, seed: int, order: Order) -> None:
    chance = random.Random(seed)
    with scope.team(caller.team.pk):
        whole = add_conversations(caller, 30, chance)
        if order is Order.DESC:
            whole = whole[::-1]
        for back in (False, True):
            read = lambda page: list_conversations(caller, page)  # noqa: E731
            assert walk(read, order=order, limit=chance.randint(1, 9), back=back) == whole


def test_after_and_before_work_with_equal_times(caller: Caller) -> None:
    with scope.team(caller.team.pk):
        whole = add_conversations(caller, 30, random.Random(1))
        page = PageRequest(order=Order.ASC, limit=100, after=whole[3], before=whole[20])
        assert list_conversations(caller, page) == whole[4:20]


def test_a_deleted_cursor_is_unknown(caller: Caller) -> None:
    with scope.team(caller.team.pk):
        whole = add_conversations(caller, 5, random.Random(1))
        Conversation.objects.filter(pk=whole[2]).delete()
        with pytest.raises(NotFound):
            list_conversations(caller, PageRequest(after=whole[2]))
        assert list_conversations(caller, PageRequest(order=Order.ASC, after=whole[1])) == whole[3:]


def test_a_cursor_of_another_team_is_unknown(caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    with scope.team(other.team.pk):
        (foreign,) = add_conversations(other, 1, random.Random(1))
    with scope.team(caller.team.pk), pytest.raises(NotFound):
        list_conversations(caller, PageRequest(after=foreign))


# -- every list reads an index range -----------------------------------------------------------------------------------

Read = Callable[[PageRequest], Page[Any]]
Made = tuple[Read, list[models.Model], str]


def _by_team(model: type[models.Model], read: Callable[..., Page[Any]], **values: Any) -> Callable[[Caller], Made]:
    """Return a function that prepares a list of a team: its query, its rows, and the id of one of them."""

    def make(caller: Caller) -> Made:
        rows = [model(id=f"row_{n}", team_id=caller.team.pk, created_at=START, **values) for n in range(3)]
        return partial(_page_of, read, team_id=caller.team.pk), rows, "row_1"

    return make


def _page_of(read: Callable[..., Page[Any]], page: PageRequest, **arguments: Any) -> Page[Any]:
    return read(page=page, **arguments)


def _responses(caller: Caller, *, filters: ResponseFilter | None = None, **columns: Any) -> Made:
    values = {"api_key": caller.key, "mode": Mode.JSON, "status": Status.IN_PROGRESS, **columns}
    return _by_team(Response, partial(selectors.list_responses, filters=filters or ResponseFilter()), **values)(caller)


def _conversation_items(caller: Caller) -> Made:
    rows: list[models.Model] = []
    for position in range(3):
        item = Item(team=caller.team, id=f"row_{position}", type="message", body={})
        place = Placement(team=caller.team, owner="conv_1", section=Section.ITEMS, position=position, item=item)
        rows += [item, place]
    conversation = Conversation(id="conv_1", team=caller.team)
    return partial(_page_of, conversations.list_items, conversation=conversation), rows, "row_1"


def _store_files(caller: Caller) -> Made:
    rows = [VectorStoreFile(team=caller.team, store_id="vs_1", file_id=f"row_{n}", created_at=START) for n in range(3)]
    read = partial(_page_of, vectors.list_entries, store_id="vs_1", batch=None, status=None)
    return read, [*rows], "row_1"


def _skill_versions(caller: Caller) -> Made:
    values = {"team": caller.team, "skill_id": "skill_1", "archive": b"", "archive_size": 0, "files": 0}
    rows = [SkillVersion(id=f"row_{n}", number=n, **values) for n in range(3)]
    skill = Skill(id="skill_1", team=caller.team)
    return partial(_page_of, skills.list_versions, skill=skill), [*rows], "row_1"


def _container_files(caller: Caller) -> Made:
    values = {"team": caller.team, "container_id": "cntr_1", "size": 0, "changed": 0, "created_at": START}
    rows = [ContainerFile(id=f"row_{n}", path=str(n), **values) for n in range(3)]
    container = Container(id="cntr_1", team=caller.team)
    return partial(_page_of, containers.list_container_files, container=container), [*rows], "row_1"


def _endpoints(caller: Caller) -> Made:
    principal = directory.principal(caller.secret)
    read = lambda team_id, page: webhooks.list_endpoints(principal=principal, page=page)  # noqa: E731
    return _by_team(WebhookEndpoint, read)(caller)


_COMPLETIONS = partial(chat.list_completions, filters=CompletionFilter())
_READY = {"state": FileState.READY, "size": 1, "sha256": "0"}
LISTS: dict[str, Callable[[Caller], Made]] = {
    "responses": _responses,
    "responses of an end user": partial(_responses, filters=ResponseFilter(end_users=("ann",)), end_user="ann"),
    "responses with an error code": partial(
        _responses, filters=ResponseFilter(error_code="server_error"), error_code="server_error"
    ),
    "conversations": _by_team(Conversation, partial(conversations.list_conversations, filters=ConversationFilter())),
    "items of a conversation": _conversation_items,
    "chat completions": _by_team(ChatCompletion, _COMPLETIONS),
    "files": _by_team(File, partial(files.list_files, purpose=None), **_READY),
    "batches": lambda caller: _by_team(Batch, batches.list_batches, api_key=caller.key, expires_at=START)(caller),
    "vector stores": _by_team(VectorStore, vectors.list_stores),
    "files of a vector store": _store_files,
    "skills": _by_team(Skill, skills.list_skills),
    "versions of a skill": _skill_versions,
    "containers": _by_team(Container, partial(containers.list_containers, name=None)),
    "files of a container": _container_files,
    "webhook endpoints": _endpoints,
}


@pytest.mark.parametrize("name", LISTS)
def test_a_page_is_read_from_an_index(caller: Caller, name: str) -> None:
    """The role and the policies of the plan are those of production."""
    read, rows, cursor = LISTS[name](caller)
    with scope.team(caller.team.pk), connection.cursor() as sql:
        for row in rows:
            type(row)._default_manager.bulk_create([row])
        # A small table has no use for an index, so other plans are forbidden.
        for other in ("seqscan", "bitmapscan", "sort"):
            sql.execute(f"SET LOCAL enable_{other} = off")
        for order in Order:
            for page in (PageRequest(order=order, after=cursor), PageRequest(order=order, before=cursor)):
                with CaptureQueriesContext(connection) as captured:
                    assert len(read(page).rows) == 1
                *_, select = (query["sql"] for query in captured.captured_queries if " LIMIT " in query["sql"])
                sql.execute("EXPLAIN (COSTS OFF) " + select.replace("%", "%%"), [])
                plan = "\n".join(line for (line,) in sql.fetchall())
                # Ordering rows of equal time by id is fine: there are few.
                assert not re.search(r"(?<!Incremental) Sort$", plan, re.MULTILINE), plan
                assert re.search(r"Index Cond: .*(ROW\(|(created_at|position|number)\W+[<>])", plan), plan
        # The rows refer to objects that do not exist.
        transaction.set_rollback(True)
