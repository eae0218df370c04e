"""Full-text search: indexing, access, removal of texts, and the command palette."""

import threading
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from conversations import services as conversations
from conversations.models import Conversation, Placement, Section
from core.clock import now
from core.ids import new_id
from responses import search_index
from responses.models import Response
from responses.models.search import SearchMark, SearchText
from tenants import scope
from tenants.models import AuditEvent, Membership, Team
from tests.admin.rows import (
    add_items,
    add_response,
    assistant_message,
    function_call_item,
    member,
    page_url,
    text,
    user_message,
)
from tests.support.api import Caller, MakeCaller

URL = "/admin/search-text/"


def collect_all() -> None:
    """Run the indexing task until all current items are indexed."""
    for _ in range(4):
        search_index.collect()


def unique_word() -> str:
    """Return a unique word."""
    return f"w{uuid.uuid4().hex}"


def add_indexed_response(caller: Caller, words: str) -> Response:
    """Create a response with an indexed message."""
    response = add_response(caller)
    add_items(response, Section.OUTPUT, {**assistant_message(words), "id": new_id("msg")})
    collect_all()
    return response


def search_page(client: Client, words: str, **query: str) -> str:
    """Return the page of search results."""
    return text(client.get(URL, {"q": words, **query}))


def count_texts(caller: Caller) -> int:
    """Return the number of indexed texts of the team."""
    with scope.team(caller.team.pk):
        return SearchText.objects.count()


def test_matches_are_highlighted_and_linked(developer: Client, caller: Caller) -> None:
    word = unique_word()
    response = add_indexed_response(caller, f"Where is the {word} parcel?")
    page = search_page(developer, word.upper())
    assert f"<mark>{word}</mark> parcel" in page
    assert f"{page_url(response)}#msg_" in page


def test_phrases_alternatives_and_exclusions_work(developer: Client, caller: Caller) -> None:
    one, two = unique_word(), unique_word()
    add_indexed_response(caller, f"{one} goes {two}")
    for words, is_found in (
        (f'"{one} goes"', True), (f'"goes {one}"', False), (f"{two} or nothing", True), (f"{one} -{two}", False),
    ):  # fmt: skip
        assert ("<mark>" in search_page(developer, words)) is is_found, words


def test_calls_are_found_by_name_and_arguments(developer: Client, caller: Caller) -> None:
    name, argument = unique_word(), unique_word()
    response = add_response(caller)
    add_items(response, Section.OUTPUT, function_call_item(name, f'{{"order": "{argument}"}}'))
    collect_all()
    for word in (name, argument):
        assert f"<mark>{word}</mark>" in search_page(developer, word)


def test_matching_text_is_escaped(developer: Client, caller: Caller) -> None:
    word = unique_word()
    add_indexed_response(caller, f"<img src=x onerror=alert(1)> {word} <script>alert(2)</script>\x02<b>")
    page = search_page(developer, word)
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert f"<mark>{word}</mark>" in page


def test_another_team_finds_nothing(stranger: Client, caller: Caller) -> None:
    word = unique_word()
    response = add_indexed_response(caller, word)
    for query in ({}, {"team": caller.team.pk}):
        page = search_page(stranger, word, **query)
        assert "<mark>" not in page
        assert response.pk not in page


def test_a_hidden_team_offers_to_reveal_its_content(operator: Client, auditor: Client, caller: Caller) -> None:
    word = unique_word()
    add_indexed_response(caller, f"{word} blue parcel")
    for client in (operator, auditor):
        assert "blue parcel" not in search_page(client, word)
        page = search_page(client, word, team=caller.team.pk)
        assert "Reveal for 30 minutes" in page
        assert "blue parcel" not in page
        client.post("/admin/content/reveal/", {"team": caller.team.pk, "reason": "a customer asks for it"})
        assert "blue parcel" in search_page(client, word, team=caller.team.pk)


def test_revealing_one_team_does_not_reveal_another(operator: Client, make_caller: MakeCaller) -> None:
    word, (one, other) = unique_word(), (make_caller(), make_caller())
    here, there = add_indexed_response(one, f"{word} here"), add_indexed_response(other, f"{word} there")
    operator.post("/admin/content/reveal/", {"team": one.team.pk, "reason": "a customer asks for it"})
    page = search_page(operator, word)
    assert here.pk in page
    assert there.pk not in page


def test_each_search_is_audited_with_its_words(developer: Client, admin: Client, caller: Caller) -> None:
    word = unique_word()
    search_page(developer, word)
    search_page(admin, word)
    with scope.every_team():
        noted = AuditEvent.objects.filter(action="content.searched", after__query=word)
        assert {event.team_id for event in noted} == {caller.team.pk, None}


def test_results_can_be_filtered_by_team_and_period(admin: Client, make_caller: MakeCaller) -> None:
    word, one, other = unique_word(), make_caller(), make_caller()
    here, there = add_indexed_response(one, f"{word} here"), add_indexed_response(other, f"{word} there")
    with scope.every_team():
        keys = Placement.objects.filter(owner=there.pk).values("item_id")
        SearchText.objects.filter(item__in=keys).update(created_at=now() - timedelta(days=3))
    assert there.pk in search_page(admin, word, period="7d")
    assert there.pk not in search_page(admin, word, period="24h")
    assert here.pk in search_page(admin, word, team=one.team.pk)
    assert here.pk not in search_page(admin, word, team=other.team.pk)


def test_pages_follow_each_other_without_gaps(developer: Client, caller: Caller) -> None:
    word, response = unique_word(), add_response(caller)
    add_items(
        response, Section.OUTPUT, *({**assistant_message(f"{word} number{n}."), "id": new_id("msg")} for n in range(45))
    )
    collect_all()
    seen, page = 0, search_page(developer, word)
    while True:
        seen += page.count("<mark>")
        if 'rel="next"' not in page:
            break
        older_url = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
        page = text(developer.get(URL + older_url.replace("&amp;", "&")))
    assert seen == 45


@pytest.mark.parametrize("words", ["\"'&|!():*<->", "  ", "a" * 5000, "-", "\x00x", "%s {conditions} \\"])
def test_special_characters_do_not_break_a_search(developer: Client, words: str) -> None:
    assert developer.get(URL, {"q": words}).status_code == 200


@pytest.mark.parametrize("before", ["x", "2026-01-01_x", "2026-01-01T00:00:00_" + "0" * 32, "_"])
def test_an_invalid_cursor_is_ignored(developer: Client, before: str) -> None:
    assert developer.get(URL, {"q": "a", "before": before}).status_code == 200


def test_deleting_an_item_deletes_its_text(developer: Client, caller: Caller) -> None:
    response = add_indexed_response(caller, unique_word())
    with scope.team(caller.team.pk):
        keys = list(Placement.objects.filter(owner=response.pk).values_list("item_id", flat=True))
        Placement.objects.filter(owner=response.pk).delete()
        conversations.remove_unplaced(keys)
    assert count_texts(caller) == 0


def test_the_text_of_an_item_in_another_place_is_kept(developer: Client, caller: Caller) -> None:
    word = unique_word()
    response = add_indexed_response(caller, word)
    with scope.team(caller.team.pk):
        (place,) = Placement.objects.filter(owner=response.pk)
        kept = Conversation.objects.create(team=caller.team)
        Placement.objects.create(
            team=caller.team, owner=kept.pk, section=Section.ITEMS, position=0, item_id=place.item_id
        )
        place.delete()
        conversations.remove_unplaced([place.item_id])
    assert kept.pk in search_page(developer, word)


def test_a_team_that_opted_out_is_not_indexed(developer: Client, caller: Caller) -> None:
    word = unique_word()
    add_indexed_response(caller, f"{word} before")
    with scope.every_team():
        Team.objects.filter(pk=caller.team.pk).update(full_text_search=False)
    search_index.remove_excluded_teams()
    add_indexed_response(caller, f"{word} after")
    assert count_texts(caller) == 0
    assert "<mark>" not in search_page(developer, word)


def test_indexing_twice_creates_no_duplicates(caller: Caller) -> None:
    add_indexed_response(caller, unique_word())
    with scope.every_team():
        SearchMark.objects.update(through=0)
    collect_all()
    assert count_texts(caller) == 1


def test_items_of_late_transactions_are_indexed(developer: Client, caller: Caller) -> None:
    word = unique_word()
    written, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with scope.team(caller.team.pk):
            response = add_response(caller)
            add_items(response, Section.OUTPUT, assistant_message(f"{word} late"))
            written.set()
            assert go_on.wait(20)
        connection.close()

    writer = threading.Thread(target=slow)
    writer.start()
    assert written.wait(20)
    add_indexed_response(caller, f"{word} early")
    with scope.every_team():
        mark = SearchMark.objects.get()
        assert mark.through < (Placement.objects.order_by("-id").values_list("id", flat=True)[0])
    go_on.set()
    writer.join()
    collect_all()
    page = search_page(developer, word)
    assert " late" in page
    assert " early" in page


def test_malformed_items_do_not_stop_the_indexing(caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.OUTPUT, {"type": "shell_call"}, {"type": "message", "role": "user", "content": [1]})
    add_items(response, Section.OUTPUT, user_message(unique_word()))
    collect_all()
    assert count_texts(caller) == 1


def test_a_search_takes_at_most_25_queries(developer: Client, count_queries: object, caller: Caller) -> None:
    word, response = unique_word(), add_response(caller)
    add_items(response, Section.OUTPUT, *(assistant_message(f"{word} {n}") for n in range(25)))
    collect_all()
    assert count_queries(developer, f"{URL}?q={word}") <= 25  # type: ignore[operator]


def test_the_search_uses_the_text_index(caller: Caller) -> None:
    add_indexed_response(caller, unique_word())
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN SELECT 1 FROM responses_searchtext WHERE words @@ websearch_to_tsquery('simple', 'x')")
        assert "search_text_by_words" in "\n".join(line for (line,) in cursor.fetchall())


# -- the palette -------------------------------------------------------------------------------------------------------


def palette(client: Client, term: str) -> str:
    """Return the results of the command palette."""
    return text(client.get("/admin/search/", {"s": term, "extended": "1"}))


def test_the_palette_links_an_id_to_its_page(developer: Client, stranger: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert page_url(response) in palette(developer, response.pk)
    assert page_url(response) not in palette(stranger, response.pk)


def test_the_palette_finds_pages_teams_and_keys(lead: Client, stranger: Client, caller: Caller) -> None:
    assert 'href="/admin/responses/response/"' in palette(lead, "respon")
    assert f"/admin/tenants/team/{caller.team.pk}/" in palette(lead, caller.team.name[:20])
    assert f"/admin/tenants/apikey/{caller.key.pk}/" in palette(lead, caller.key.prefix)
    assert caller.team.pk not in palette(stranger, caller.team.name)
    assert caller.key.pk not in palette(stranger, caller.key.prefix)


def test_the_palette_hides_pages_that_the_user_may_not_open(lead: Client, admin: Client, caller: Caller) -> None:
    name = member(caller.team).session["_auth_user_id"]
    assert 'href="/admin/auth/user/"' in palette(admin, "user")
    assert "/admin/auth/user/" not in palette(lead, "user-")
    assert f"/admin/auth/user/{name}/" not in palette(lead, "user-")


def test_the_palette_finds_objects_by_two_letters_but_not_by_one(admin: Client, caller: Caller) -> None:
    with scope.every_team():
        team = Team.objects.create(name=f"zq {uuid.uuid4().hex}")
    try:
        assert [team.pk in palette(admin, term) for term in ("zq", "z")] == [True, False]
    finally:
        with scope.every_team():
            team.delete()


def test_the_palette_offers_a_full_text_search(developer: Client, caller: Caller) -> None:
    assert f"{URL}?q=blue+parcel" in palette(developer, "blue parcel")


def test_the_palette_escapes_the_term(developer: Client, caller: Caller) -> None:
    assert "<script>" not in palette(developer, "<script>alert(1)</script>")


def test_the_palette_shows_no_cached_results_after_access_is_lost(caller: Caller) -> None:
    seen = member(caller.team)
    assert caller.key.pk in palette(seen, caller.key.prefix)
    with scope.every_team():
        Membership.objects.filter(user_id=seen.session["_auth_user_id"]).delete()
    assert caller.key.pk not in palette(seen, caller.key.prefix)


def test_every_page_has_the_palette(developer: Client) -> None:
    assert 'id="search-input-command"' in text(developer.get("/admin/"))
