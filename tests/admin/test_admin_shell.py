"""Frame of the console's pages: navigation, headings, empty lists, filters, compression."""

import gzip
import re

import pytest
from django.test import Client

from tenants import services
from tests.admin.rows import add_response, text
from tests.support.api import Caller
from tests.support.prompts import write_prompt

KEYS = "/admin/tenants/apikey/"
RESPONSES = "/admin/responses/response/"
MAX_ENTRIES = 16


def entries(page: str) -> list[str]:
    """Return the titles of the sidebar."""
    sidebar = page[page.index('<div class="c-nav">') : page.index('<main id="main-content"')]
    return re.findall(r"</span><span>([^<]+)</span>", sidebar)


def tabs(page: str) -> list[str]:
    """Return the titles of the related pages."""
    found = re.search(r'<nav class="c-section".*?</nav>', page, re.DOTALL)
    return re.findall(r">([^<]+)</a>", found[0]) if found else []


def test_the_sidebar_has_few_entries_in_groups(admin: Client, lead: Client, operator: Client) -> None:
    home = text(admin.get("/admin/"))
    assert len(entries(home)) == MAX_ENTRIES
    assert re.findall(r"<summary>(\w+)<", home) == ["Activity", "Build", "Access", "Platform"]
    for client in (lead, operator):
        assert 8 < len(entries(text(client.get("/admin/")))) <= MAX_ENTRIES


def test_an_entry_is_the_first_of_its_pages_that_the_user_may_open(lead: Client, admin: Client) -> None:
    assert tabs(text(admin.get("/admin/tenants/guardrail/")))[0] == "Models"
    assert tabs(text(lead.get("/admin/tenants/guardrail/"))) == ["Guardrails", "Guardrail decisions"]
    shown = entries(text(lead.get("/admin/")))
    assert ("Guardrails" in shown, "Models" in shown, "System" in shown) == (True, False, False)


def test_the_group_of_the_open_page_is_open(admin: Client) -> None:
    page = text(admin.get("/admin/tenants/price/"))
    assert '<details class="c-nav-group" data-group="platform" data-current open>' in page
    assert '<details class="c-nav-group" data-group="access">' in page
    assert 'aria-current="page" data-key="m"' in page


@pytest.mark.parametrize(("path", "key"), [("/admin/compare/", "r"), ("/admin/limits/{team}/", "e")])
def test_a_page_below_an_entry_marks_the_entry(admin: Client, caller: Caller, path: str, key: str) -> None:
    assert f'aria-current="page" data-key="{key}"' in text(admin.get(path.format(team=caller.team.pk)))


@pytest.mark.parametrize(
    ("path", "heading"),
    [
        ("/admin/tenants/connector/", "Connectors"),
        ("/admin/tenants/connector/add/", "Add connector"),
        ("/admin/tenants/apikey/add/", "Create an API key"),
        ("/admin/tenants/price/add/", "Add price"),
        ("/admin/usage/", "Usage"),
    ],
)
def test_a_page_has_its_own_heading(admin: Client, path: str, heading: str) -> None:
    assert headings(text(admin.get(path))) == [heading]


def test_the_form_of_an_object_names_it(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Be brief.")
    page = text(lead.get(f"/admin/responses/prompttemplate/{prompt.pk}/change/"))
    assert headings(page) == [f"Edit prompt {prompt}"]
    assert '<a class="c-crumb" href="/admin/responses/prompttemplate/">Prompts</a>' in page


def headings(page: str) -> list[str]:
    """Return the texts of the first-level headings."""
    found = re.findall(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", heading).split()) for heading in found]


def test_an_empty_list_says_what_it_would_contain(lead: Client, caller: Caller) -> None:
    prompts = text(lead.get("/admin/responses/prompttemplate/"))
    assert "<h2>No prompts yet</h2>" in prompts
    assert ">Create a prompt</a>" in prompts
    responses = text(lead.get(f"{RESPONSES}?period=1h"))
    assert "<h2>No responses in this period</h2>" in responses
    assert "Show 30 days" in responses
    assert "yielded" not in prompts + responses


def test_a_list_without_matches_offers_to_clear_its_filters(lead: Client, caller: Caller) -> None:
    add_response(caller)
    page = text(lead.get(f"{RESPONSES}?model=other&period=7d"))
    assert "<h2>No responses match</h2>" in page
    assert "Clear the filters" in page
    searched = text(lead.get(f"{KEYS}?q=nothing-like-this"))
    assert "Nothing was found for “nothing-like-this”." in searched
    assert '<a class="c-button plain" href="?">Clear the search</a>' in searched


def test_active_filters_are_chips_with_a_link_that_removes_them(lead: Client, caller: Caller) -> None:
    page = text(lead.get(f"{RESPONSES}?model=m&team__id__exact={caller.team.pk}&period=7d&p=2"))
    chips = re.findall(r"<li><span>([^<]+): <b>([^<]*)</b></span><a href=\"([^\"]*)\"", page)
    assert chips == [
        ("Team", caller.team.name, "?model=m&amp;period=7d"),
        ("Model", "m", f"?team__id__exact={caller.team.pk}&amp;period=7d"),
    ]
    assert "c-filter-chips" not in text(lead.get(f"{RESPONSES}?period=7d"))


def test_filters_have_plain_labels(lead: Client, caller: Caller) -> None:
    page = text(lead.get(RESPONSES))
    labels = re.findall(r"<(?:label|legend)[^>]*>\s*([^<]+?)\s*</(?:label|legend)>", page[page.index("filter-form") :])
    assert labels[:5] == ["Time", "Status", "Waits for", "Team", "API key"]
    assert [label for label in labels if label.startswith("By ")] == []


def test_pages_are_compressed_except_those_that_show_a_secret(lead: Client, caller: Caller) -> None:
    compressed = lead.get(RESPONSES, headers={"Accept-Encoding": "gzip"})
    assert compressed["Content-Encoding"] == "gzip"
    assert b"Responses" in gzip.decompress(compressed.content)
    form = {"team": caller.team.pk, "name": "laptop", "scopes": ["*"], "tools": ["*"], "lifetime": "90"}
    created = lead.post(f"{KEYS}add/", form, headers={"Accept-Encoding": "gzip"})
    assert "Copy your new key" in text(created)
    assert not created.has_header("Content-Encoding")


def test_exports_are_not_compressed(lead: Client, caller: Caller) -> None:
    add_response(caller)
    export = lead.get(f"{RESPONSES}export/", headers={"Accept-Encoding": "gzip"})
    assert (export.status_code, export.has_header("Content-Encoding")) == (200, False)


def test_a_cell_has_one_class(lead: Client, caller: Caller) -> None:
    for number in range(3):
        services.create_key(team=caller.team, spec=services.KeySpec(name=f"key {number}"))
    page = text(lead.get(KEYS))
    rows = page[page.index('id="result_list"') :]
    assert rows.count("c-cell") > 20
    assert "lg:table-cell" not in rows[rows.index("<tbody") :]
