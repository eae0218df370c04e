"""Conversations in the admin: list, chat, actions, chains and permissions."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from conversations.models import Conversation, Item, Placement, Section
from core.clock import now
from core.ids import new_id
from responses.models import ConversationLock, Response
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.conftest import CountQueries
from tests.admin.rows import (
    add_call,
    add_items,
    add_response,
    assistant_message,
    function_call_item,
    text,
    user_message,
)
from tests.support.api import Caller

LIST = "/admin/conversations/conversation/"


def add_conversation(caller: Caller, *bodies: dict[str, Any], **columns: Any) -> Conversation:
    """Create a conversation with these items."""
    with scope.team(caller.team.pk):
        made = Conversation.objects.create(team=caller.team, api_key=caller.key, next_position=len(bodies), **columns)
        items = [
            Item(team_id=caller.team.pk, id=whole["id"], type=whole["type"], body=whole)
            for whole in ({"id": new_id("it"), **body} for body in bodies)
        ]
        Item.objects.bulk_create(items)
        Placement.objects.bulk_create(
            Placement(team_id=caller.team.pk, owner=made.pk, section=Section.ITEMS, position=position, item=item)
            for position, item in enumerate(items)
        )
    return made


def add_to_response(response: Response, conversation: Conversation, section: Section, *positions: int) -> None:
    """Add items of the conversation to a response, as a run does."""
    with scope.team(response.team_id):
        places = Placement.objects.filter(owner=conversation.pk, position__in=positions).order_by("position")
        for position, place in enumerate(places):
            Placement.objects.create(
                team_id=response.team_id, owner=response.pk, section=section, position=position, item_id=place.item_id
            )


def page_url(conversation: Conversation) -> str:
    return f"{LIST}{conversation.pk}/change/"


def names(conversation: Conversation) -> list[str]:
    """Return the ids of its items, in order."""
    with scope.team(conversation.team_id):
        places = Placement.objects.filter(owner=conversation.pk).order_by("position")
        return [place.item.id for place in places.select_related("item")]


def audited(conversation_id: str, action: str) -> AuditEvent:
    with scope.every_team():
        return AuditEvent.objects.get(target=conversation_id, action=action)


@pytest.fixture
def conversation(caller: Caller) -> Conversation:
    """A conversation of two responses: a question, a call with its output, and an answer."""
    answer = {"type": "function_call_output", "call_id": "call_1", "output": '{"sky": "blue"}'}
    bodies = [
        user_message("**How** is it?"),
        function_call_item("look", '{"at": "sky"}'),
        answer,
        assistant_message("It is *blue*."),
    ]
    made = add_conversation(caller, *bodies, metadata={"case": "zebra crossing"})
    first = add_response(caller, conversation_id=made.pk, input_preview="How is it?", end_user="ada", tool_calls=1)
    add_to_response(first, made, Section.INPUT, 0)
    add_to_response(first, made, Section.OUTPUT, 1)
    add_call(first, name="look", attempt=2)
    second = add_response(caller, conversation_id=made.pk, input_tokens=1200, output_tokens=34, error_code="oops")
    add_to_response(second, made, Section.INPUT, 2)
    add_to_response(second, made, Section.OUTPUT, 3)
    return made


# -- the list ----------------------------------------------------------------------------------------------------------


def test_the_list_shows_preview_end_user_turns_and_tokens(lead: Client, conversation: Conversation) -> None:
    page = text(lead.get(LIST))
    expected = [conversation.pk, "How is it?", "ada", "2 turns", "1,200 / 34"]
    assert [words for words in expected if words not in page] == []


def test_a_conversation_without_responses_shows_its_first_user_message(lead: Client, caller: Caller) -> None:
    add_conversation(caller, assistant_message("Welcome"), user_message("Where is my parcel?"))
    assert "Where is my parcel?" in text(lead.get(LIST))


def test_the_list_shows_the_lock_of_a_conversation(lead: Client, conversation: Conversation) -> None:
    with scope.team(conversation.team_id):
        until = now() + timedelta(minutes=1)
        ConversationLock.objects.create(
            conversation_id=conversation.pk, team_id=conversation.team_id, response_id="r", until=until
        )
    assert "locked by r" in text(lead.get(LIST))


def test_old_conversations_can_be_found_by_id_activity_and_period(lead: Client, caller: Caller) -> None:
    old = add_conversation(caller, user_message("hi"), created_at=now() - timedelta(days=20))
    assert old.pk not in text(lead.get(LIST))
    assert old.pk in text(lead.get(LIST, {"q": old.pk}))
    assert old.pk in text(lead.get(LIST, {"period": "30d"}))
    assert old.pk not in text(lead.get(LIST, {"active": "1h"}))
    add_response(caller, conversation_id=old.pk)
    assert old.pk in text(lead.get(LIST, {"active": "1h"}))


def test_the_activity_filter_sorts_by_last_activity(lead: Client, caller: Caller) -> None:
    older, newer = add_conversation(caller), add_conversation(caller)
    add_response(caller, conversation_id=newer.pk, created_at=now() - timedelta(minutes=5))
    add_response(caller, conversation_id=older.pk)
    page = text(lead.get(LIST, {"active": "24h"}))
    assert page.index(older.pk) < page.index(newer.pk)


def test_the_list_is_filtered_by_metadata(lead: Client, caller: Caller, conversation: Conversation) -> None:
    other = add_conversation(caller, metadata={"case": "1"})
    page = text(lead.get(LIST, {"metadata": "case=zebra crossing"}))
    assert conversation.pk in page
    assert other.pk not in page


def test_conversations_of_an_end_user_are_found_at_any_age(lead: Client, caller: Caller) -> None:
    old = add_conversation(caller, created_at=now() - timedelta(days=90))
    add_response(caller, conversation_id=old.pk, end_user="grace")
    assert page_url(old) in text(lead.get(LIST, {"end_user": "grace"}))
    assert page_url(old) not in text(lead.get(LIST, {"end_user": "ada"}))


def test_the_list_has_a_constant_number_of_queries(
    lead: Client, caller: Caller, conversation: Conversation, count_queries: CountQueries
) -> None:
    few = count_queries(lead, LIST)
    for number in range(20):
        one = add_conversation(caller, user_message(f"hello {number}"))
        add_response(caller, conversation_id=one.pk)
    # Conversations without a preview need two more queries in total.
    assert count_queries(lead, LIST) <= few + 2


# -- the chat ----------------------------------------------------------------------------------------------------------


def test_the_chat_shows_messages_and_calls_in_order(lead: Client, conversation: Conversation) -> None:
    page = text(lead.get(page_url(conversation)))
    expected = [
        "<strong>How</strong>",
        "<b>look</b>",
        "&quot;sky&quot;: &quot;blue&quot;",
        "250 ms",
        "attempt 2",
        "zebra crossing",
    ]
    assert [words for words in expected if words not in page] == []
    assert page.index("<strong>How</strong>") < page.index("<b>look</b>") < page.index("<em>blue</em>")


def test_a_call_and_its_output_share_one_card(lead: Client, conversation: Conversation) -> None:
    page = text(lead.get(page_url(conversation)))
    _, call, answer, _ = names(conversation)
    card = page.partition(f'data-item-id="{call}"')[2].partition("</article>")[0]
    assert f'data-item-id="{answer}"' in card


def test_the_items_of_a_response_follow_a_link_to_it(lead: Client, conversation: Conversation) -> None:
    page = text(lead.get(page_url(conversation)))
    with scope.team(conversation.team_id):
        first, second = Response.objects.filter(conversation_id=conversation.pk).order_by("created_at")
    chat = page.partition("data-chat")[2].partition("</section>")[0]
    assert chat.index(f"{first.pk}/change/") < chat.index("<strong>How") < chat.index(f"{second.pk}/change/")


def test_items_added_without_a_response_are_marked(lead: Client, caller: Caller) -> None:
    made = add_conversation(caller, user_message("hi"), assistant_message("hello"), user_message("by hand"))
    response = add_response(caller, conversation_id=made.pk)
    add_to_response(response, made, Section.OUTPUT, 0, 1)
    page = text(lead.get(page_url(made)))
    assert page.index("hello") < page.index("Added without a response") < page.index("by hand")


def test_earlier_items_load_fifty_at_a_time(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    long = add_conversation(caller, *(user_message(f"number {number} of many") for number in range(120)))
    page = text(lead.get(page_url(long)))
    assert "number 119 of" in page
    assert "number 70 of" in page
    assert "number 69 of" not in page
    earlier = text(lead.get(f"{LIST}{long.pk}/items/", {"before": "70"}))
    assert "number 69 of" in earlier
    assert "number 19 of" not in earlier
    assert "<html" not in earlier
    oldest = text(lead.get(page_url(long), {"before": "20"}))
    assert "Created <time" in oldest
    assert "Latest items" in oldest
    assert count_queries(lead, page_url(long)) < 30


def test_a_link_to_an_item_shows_it_in_context(lead: Client, caller: Caller) -> None:
    long = add_conversation(caller, *(user_message(f"number {number} of many") for number in range(120)))
    page = text(lead.get(page_url(long), {"item": names(long)[40]}))
    assert "number 40 of" in page
    assert "number 119 of" not in page


def test_a_response_that_spans_two_pages_has_one_header(lead: Client, caller: Caller) -> None:
    long = add_conversation(caller, *(assistant_message(str(number)) for number in range(60)))
    response = add_response(caller, conversation_id=long.pk)
    add_to_response(response, long, Section.OUTPUT, *range(60))
    earlier = text(lead.get(f"{LIST}{long.pk}/items/", {"before": "10", "of": response.pk}))
    assert '<div id="c-turn-at-10" hx-swap-oob="delete">' in earlier


# -- permissions -------------------------------------------------------------------------------------------------------


def test_a_conversation_of_another_team_is_not_found(stranger: Client, conversation: Conversation) -> None:
    assert page_url(conversation) not in text(stranger.get(LIST, {"q": conversation.pk}))
    assert stranger.get(page_url(conversation)).status_code == 404
    for name in ("items", "fork", "remove", "export"):
        assert stranger.get(f"{LIST}{conversation.pk}/{name}/").status_code == 404
        assert stranger.post(f"{LIST}{conversation.pk}/{name}/", {"reason": "because"}).status_code == 404
    assert len(names(conversation)) == 4


def test_content_is_hidden_from_viewers_without_read_access(
    auditor: Client, operator: Client, conversation: Conversation
) -> None:
    for client in (auditor, operator):
        page = text(client.get(page_url(conversation))) + text(client.get(LIST, {"q": conversation.pk}))
        assert [words for words in ("How", "&quot;sky", "blue", "zebra crossing") if words in page] == []
        assert "Content hidden" in page
        assert "<b>look</b>" in page
        assert "250 ms" in page
        assert client.get(f"{LIST}{conversation.pk}/export/").status_code == 403


def test_after_a_reveal_content_is_shown_and_audited(operator: Client, conversation: Conversation) -> None:
    operator.post("/admin/content/reveal/", {"team": conversation.team_id, "reason": "ticket 12", "next": "/admin/"})
    assert "<em>blue</em>" in text(operator.get(page_url(conversation)))
    assert audited(conversation.pk, "content.viewed").actor.startswith("user:")


def test_auditors_may_not_fork_or_delete(auditor: Client, platform_auditor: Client, conversation: Conversation) -> None:
    for client in (auditor, platform_auditor):
        assert f"{conversation.pk}/fork/" not in text(client.get(page_url(conversation)))
        assert client.post(f"{LIST}{conversation.pk}/fork/").status_code == 403
        assert client.post(f"{LIST}{conversation.pk}/remove/", {"reason": "because"}).status_code == 403


# -- actions -----------------------------------------------------------------------------------------------------------


def test_a_fork_contains_the_items_up_to_the_chosen_one(developer: Client, conversation: Conversation) -> None:
    after = names(conversation)[2]
    assert after in text(developer.get(f"{LIST}{conversation.pk}/fork/", {"after": after}))
    made = developer.post(f"{LIST}{conversation.pk}/fork/", {"after": after})
    with scope.team(conversation.team_id):
        fork = Conversation.objects.get(pk=made["Location"].split("/")[-3])
    assert names(fork) == names(conversation)[:3]
    assert fork.metadata == conversation.metadata
    assert audited(fork.pk, "conversation.forked").after["from"] == conversation.pk


def test_deleting_items_needs_a_reason(lead: Client, conversation: Conversation) -> None:
    before = names(conversation)
    url = f"{LIST}{conversation.pk}/remove/"
    assert "Delete these 2 items?" in text(lead.get(url, {"item": before[1:3]}))
    assert lead.post(url, {"item": before[1:3], "reason": ""}).status_code == 200
    assert names(conversation) == before
    lead.post(url, {"item": before[1:2], "reason": "a secret"})
    assert names(conversation) == [before[0], *before[2:]]
    assert audited(conversation.pk, "conversation.item_deleted").after == {"reason": "a secret"}


def test_deleting_a_conversation_records_the_reason(lead: Client, conversation: Conversation) -> None:
    assert lead.post(f"{LIST}{conversation.pk}/remove/", {"reason": "asked for it"})["Location"] == LIST
    assert lead.get(page_url(conversation)).status_code == 404
    assert audited(conversation.pk, "conversation.deleted").after == {"reason": "asked for it"}


def test_a_developer_may_not_delete(developer: Client, conversation: Conversation) -> None:
    assert developer.post(f"{LIST}{conversation.pk}/remove/", {"reason": "because"}).status_code == 403
    assert len(names(conversation)) == 4


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_a_conversation_is_exported_as_json_lines_and_markdown(lead: Client, conversation: Conversation) -> None:
    lines = b"".join(lead.get(f"{LIST}{conversation.pk}/export/")).decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == names(conversation)
    written = b"".join(lead.get(f"{LIST}{conversation.pk}/export/", {"format": "md"})).decode()
    assert "## User\n\n**How** is it?" in written
    assert '### Function call `look`\n\n```\n{"at": "sky"}\n```' in written


# -- chains ------------------------------------------------------------------------------------------------------------


def test_a_chain_is_shown_as_a_tree(lead: Client, caller: Caller) -> None:
    root = add_response(caller, input_preview="the beginning")
    left = add_response(caller, previous_response_id=root.pk, input_preview="went left")
    add_response(caller, previous_response_id=root.pk, input_preview="went right")
    add_response(caller, previous_response_id=left.pk, input_preview="the end")
    page = text(lead.get(f"/admin/responses/response/{left.pk}/chain/"))
    expected = ["the beginning", "went left", "the end", "went right"]
    assert sorted(expected, key=page.index) == expected
    assert "1 branch" in page


def test_a_long_chain_is_truncated(lead: Client, caller: Caller) -> None:
    chain = [add_response(caller)]
    for _ in range(230):
        chain.append(add_response(caller, previous_response_id=chain[-1].pk))
    page = text(lead.get(f"/admin/responses/response/{chain[0].pk}/chain/"))
    assert "Showing the first 200 responses." in page
    assert "the first one listed</a> are not shown" in text(
        lead.get(f"/admin/responses/response/{chain[-1].pk}/chain/")
    )


def test_a_chain_checks_team_and_read_access(stranger: Client, auditor: Client, caller: Caller) -> None:
    response = add_response(caller, input_preview="the beginning")
    url = f"/admin/responses/response/{response.pk}/chain/"
    assert stranger.get(url).status_code == 404
    assert "the beginning" not in text(auditor.get(url))


def test_a_response_links_to_its_conversation(lead: Client, conversation: Conversation, caller: Caller) -> None:
    response = add_response(caller, conversation_id=conversation.pk)
    add_items(response, Section.INPUT, user_message("hi"))
    assert page_url(conversation) in text(lead.get(f"/admin/responses/response/{response.pk}/change/"))
