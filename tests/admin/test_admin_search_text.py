"""Full-text search: what is collected, when, who finds it, and that nothing stays behind."""

import threading
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from conversations import services as conversations
from conversations.models import Conversation, Placement, Section
from kernel.clock import now
from kernel.ids import new_id
from responses import search_index
from responses.models import Response
from responses.models.search import SearchMark, SearchText
from tenants import scope
from tenants.models import AuditEvent, Membership, Team
from tests.admin.rows import add_response, member, model_calls, model_says, page_of, say, text, user_says
from tests.support.api import Caller, MakeCaller

URL = "/admin/search-text/"


def collect_all() -> None:
    """What beat does every few seconds, until what is there now has been read."""
    for _ in range(4):
        search_index.collect()


def a_word() -> str:
    """A word that nobody else says."""
    return f"w{uuid.uuid4().hex}"


def said(caller: Caller, words: str) -> Response:
    """A response that says these words, collected."""
    response = add_response(caller)
    say(response, Section.OUTPUT, {**model_says(words), "id": new_id("msg")})
    collect_all()
    return response


def found(client: Client, words: str, **query: str) -> str:
    """The page of a search."""
    return text(client.get(URL, {"q": words, **query}))


def texts_of(caller: Caller) -> int:
    """How many texts of the team can be searched."""
    with scope.team(caller.team.pk):
        return SearchText.objects.count()


def test_words_are_found_marked_with_a_link_to_their_place(developer: Client, caller: Caller) -> None:
    word = a_word()
    response = said(caller, f"Where is the {word} parcel?")
    page = found(developer, word.upper())
    assert f"<mark>{word}</mark> parcel" in page
    assert f"{page_of(response)}#msg_" in page


def test_phrases_alternatives_and_exclusions_are_understood(developer: Client, caller: Caller) -> None:
    one, two = a_word(), a_word()
    said(caller, f"{one} goes {two}")
    for words, is_found in (
        (f'"{one} goes"', True), (f'"goes {one}"', False), (f"{two} or nothing", True), (f"{one} -{two}", False),
    ):  # fmt: skip
        assert ("<mark>" in found(developer, words)) is is_found, words


def test_calls_are_found_by_name_and_arguments(developer: Client, caller: Caller) -> None:
    name, argument = a_word(), a_word()
    response = add_response(caller)
    say(response, Section.OUTPUT, model_calls(name, f'{{"order": "{argument}"}}'))
    collect_all()
    for word in (name, argument):
        assert f"<mark>{word}</mark>" in found(developer, word)


def test_what_was_said_is_never_markup(developer: Client, caller: Caller) -> None:
    word = a_word()
    said(caller, f"<img src=x onerror=alert(1)> {word} <script>alert(2)</script>\x02<b>")
    page = found(developer, word)
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert f"<mark>{word}</mark>" in page


def test_another_team_finds_nothing(stranger: Client, caller: Caller) -> None:
    word = a_word()
    response = said(caller, word)
    for query in ({}, {"team": caller.team.pk}):
        page = found(stranger, word, **query)
        assert "<mark>" not in page
        assert response.pk not in page


def test_without_the_right_to_read_there_is_a_form_to_reveal(operator: Client, auditor: Client, caller: Caller) -> None:
    word = a_word()
    said(caller, f"{word} blue parcel")
    for client in (operator, auditor):
        assert "blue parcel" not in found(client, word)
        page = found(client, word, team=caller.team.pk)
        assert "Reveal for 30 minutes" in page
        assert "blue parcel" not in page
        client.post("/admin/content/reveal/", {"team": caller.team.pk, "reason": "a customer asks for it"})
        assert "blue parcel" in found(client, word, team=caller.team.pk)


def test_a_reveal_of_one_team_opens_no_other(operator: Client, make_caller: MakeCaller) -> None:
    word, (one, other) = a_word(), (make_caller(), make_caller())
    here, there = said(one, f"{word} here"), said(other, f"{word} there")
    operator.post("/admin/content/reveal/", {"team": one.team.pk, "reason": "a customer asks for it"})
    page = found(operator, word)
    assert here.pk in page
    assert there.pk not in page


def test_each_search_is_noted_with_its_words(developer: Client, admin: Client, caller: Caller) -> None:
    word = a_word()
    found(developer, word)
    found(admin, word)
    with scope.every_team():
        noted = AuditEvent.objects.filter(action="content.searched", after__query=word)
        assert {event.team_id for event in noted} == {caller.team.pk, None}


def test_the_team_and_the_time_narrow(admin: Client, make_caller: MakeCaller) -> None:
    word, one, other = a_word(), make_caller(), make_caller()
    here, there = said(one, f"{word} here"), said(other, f"{word} there")
    with scope.every_team():
        keys = Placement.objects.filter(owner=there.pk).values("item_id")
        SearchText.objects.filter(item__in=keys).update(created_at=now() - timedelta(days=3))
    assert there.pk in found(admin, word, period="7d")
    assert there.pk not in found(admin, word, period="24h")
    assert here.pk in found(admin, word, team=one.team.pk)
    assert here.pk not in found(admin, word, team=other.team.pk)


def test_pages_follow_each_other_without_gaps(developer: Client, caller: Caller) -> None:
    word, response = a_word(), add_response(caller)
    say(response, Section.OUTPUT, *({**model_says(f"{word} number{n}."), "id": new_id("msg")} for n in range(45)))
    collect_all()
    seen, page = 0, found(developer, word)
    while True:
        seen += page.count("<mark>")
        if 'rel="next"' not in page:
            break
        onward = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
        page = text(developer.get(URL + onward.replace("&amp;", "&")))
    assert seen == 45


@pytest.mark.parametrize("words", ["\"'&|!():*<->", "  ", "a" * 5000, "-", "\x00x", "%s {narrow} \\"])
def test_any_words_are_an_honest_search(developer: Client, words: str) -> None:
    assert developer.get(URL, {"q": words}).status_code == 200


@pytest.mark.parametrize("before", ["x", "2026-01-01_x", "2026-01-01T00:00:00_" + "0" * 32, "_"])
def test_a_place_that_is_none_is_ignored(developer: Client, before: str) -> None:
    assert developer.get(URL, {"q": "a", "before": before}).status_code == 200


def test_texts_go_with_their_items(developer: Client, caller: Caller) -> None:
    response = said(caller, a_word())
    with scope.team(caller.team.pk):
        keys = list(Placement.objects.filter(owner=response.pk).values_list("item_id", flat=True))
        Placement.objects.filter(owner=response.pk).delete()
        conversations.remove_unplaced(keys)
    assert texts_of(caller) == 0


def test_texts_of_items_that_stand_elsewhere_stay(developer: Client, caller: Caller) -> None:
    word = a_word()
    response = said(caller, word)
    with scope.team(caller.team.pk):
        (place,) = Placement.objects.filter(owner=response.pk)
        kept = Conversation.objects.create(team=caller.team)
        Placement.objects.create(
            team=caller.team, owner=kept.pk, section=Section.ITEMS, position=0, item_id=place.item_id
        )
        place.delete()
        conversations.remove_unplaced([place.item_id])
    assert kept.pk in found(developer, word)


def test_a_team_that_does_not_want_it_is_not_searched(developer: Client, caller: Caller) -> None:
    word = a_word()
    said(caller, f"{word} before")
    with scope.every_team():
        Team.objects.filter(pk=caller.team.pk).update(full_text_search=False)
    search_index.remove_excluded_teams()
    said(caller, f"{word} after")
    assert texts_of(caller) == 0
    assert "<mark>" not in found(developer, word)


def test_collecting_twice_changes_nothing(caller: Caller) -> None:
    said(caller, a_word())
    with scope.every_team():
        SearchMark.objects.update(through=0)
    collect_all()
    assert texts_of(caller) == 1


def test_an_item_whose_transaction_ends_late_is_not_skipped(developer: Client, caller: Caller) -> None:
    word = a_word()
    written, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with scope.team(caller.team.pk):
            response = add_response(caller)
            say(response, Section.OUTPUT, model_says(f"{word} late"))
            written.set()
            assert go_on.wait(20)
        connection.close()

    writer = threading.Thread(target=slow)
    writer.start()
    assert written.wait(20)
    said(caller, f"{word} early")
    with scope.every_team():
        mark = SearchMark.objects.get()
        assert mark.through < (Placement.objects.order_by("-id").values_list("id", flat=True)[0])
    go_on.set()
    writer.join()
    collect_all()
    page = found(developer, word)
    assert " late" in page
    assert " early" in page


def test_odd_bodies_do_not_stop_it(caller: Caller) -> None:
    response = add_response(caller)
    say(response, Section.OUTPUT, {"type": "shell_call"}, {"type": "message", "role": "user", "content": [1]})
    say(response, Section.OUTPUT, user_says(a_word()))
    collect_all()
    assert texts_of(caller) == 1


def test_a_search_takes_few_queries(developer: Client, count_queries: object, caller: Caller) -> None:
    word, response = a_word(), add_response(caller)
    say(response, Section.OUTPUT, *(model_says(f"{word} {n}") for n in range(25)))
    collect_all()
    assert count_queries(developer, f"{URL}?q={word}") <= 25  # type: ignore[operator]


def test_the_words_have_an_index_that_is_used(caller: Caller) -> None:
    said(caller, a_word())
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN SELECT 1 FROM responses_searchtext WHERE words @@ websearch_to_tsquery('simple', 'x')")
        assert "search_text_by_words" in "\n".join(line for (line,) in cursor.fetchall())


# -- the palette -------------------------------------------------------------------------------------------------------


def palette(client: Client, term: str) -> str:
    """What the palette shows."""
    return text(client.get("/admin/search/", {"s": term, "extended": "1"}))


def test_an_id_in_the_palette_leads_to_its_page(developer: Client, stranger: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert page_of(response) in palette(developer, response.pk)
    assert page_of(response) not in palette(stranger, response.pk)


def test_a_word_leads_to_pages_teams_and_keys(lead: Client, stranger: Client, caller: Caller) -> None:
    assert 'href="/admin/responses/response/"' in palette(lead, "respon")
    assert f"/admin/tenants/team/{caller.team.pk}/" in palette(lead, caller.team.name[:20])
    assert f"/admin/tenants/apikey/{caller.key.pk}/" in palette(lead, caller.key.prefix)
    assert caller.team.pk not in palette(stranger, caller.team.name)
    assert caller.key.pk not in palette(stranger, caller.key.prefix)


def test_the_palette_has_no_pages_of_others(lead: Client, admin: Client, caller: Caller) -> None:
    name = member(caller.team).session["_auth_user_id"]
    assert 'href="/admin/auth/user/"' in palette(admin, "user")
    assert "/admin/auth/user/" not in palette(lead, "user-")
    assert f"/admin/auth/user/{name}/" not in palette(lead, "user-")


def test_the_palette_offers_the_search_in_texts(developer: Client, caller: Caller) -> None:
    assert f"{URL}?q=blue+parcel" in palette(developer, "blue parcel")


def test_the_palette_escapes(developer: Client, caller: Caller) -> None:
    assert "<script>" not in palette(developer, "<script>alert(1)</script>")


def test_the_palette_forgets_at_once_what_may_not_be_seen(caller: Caller) -> None:
    seen = member(caller.team)
    assert caller.key.pk in palette(seen, caller.key.prefix)
    with scope.every_team():
        Membership.objects.filter(user_id=seen.session["_auth_user_id"]).delete()
    assert caller.key.pk not in palette(seen, caller.key.prefix)


def test_every_page_has_the_palette(developer: Client) -> None:
    assert 'id="search-input-command"' in text(developer.get("/admin/"))
