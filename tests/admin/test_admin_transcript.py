"""Transcript: every item type is readable, without binary data and raw JSON."""

import base64
from io import BytesIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from conversations.files import storage
from conversations.models import File, Item, Purpose, Section
from core.clock import now
from responses.models import Decision, DecisionState, Response, ToolCall
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import (
    add_call,
    add_items,
    add_response,
    add_turns,
    assistant_message,
    function_call_item,
    page_url,
    text,
    user_message,
)
from tests.support.api import Caller
from tests.support.items import SAMPLES

SHOWN: dict[str, list[str]] = {
    "msg_1": [
        "Hi",
        "data image, image/png",
        "file-1",
        "https://example.com/a.pdf",
        "from example.com, not loaded",
        "hi.txt",
    ],
    "msg_2": ["Hello", "final answer", "a.pdf", 'href="https://a"', "a.csv", "file-2", "Refusal", "No."],
    "rs_1": ["Hm.", "Summary", "It thought.", "Encrypted content: 6 B"],
    "fc_1": ["eyes.look", "Arguments", "&quot;at&quot;: &quot;it&quot;", "call_1", "completed"],
    "fco_1": ["<b>eyes.look</b> returned", "a cat", "data image, image/png", "file-1"],
    "ctc_1": ["db.sql", "Input", "SELECT 1", "call_2"],
    "ctco_1": ["<b>tool</b> returned", "call_2"],
    "tsc_1": ["<b>tool search</b> by the client", "&quot;query&quot;: &quot;eyes&quot;"],
    "tso_1": ["<b>tool search</b> returned, by the client", "Tools", "look"],
    "cu_1": ["computer", "click button=left x=1 y=2 keys=CTRL", "path=(1,2),(3,4)", "Safety checks", "Is it?"],
    "cuo_1": ["<b>computer</b> returned", "Screenshot", "file-1", "Acknowledged safety checks"],
    "sh_1": ["<b>shell</b>", "Commands", "ls\npwd", "Limits", "&quot;timeout_ms&quot;: 1000"],
    "sho_1": ["Command 1, exit 0", "Command 2, timed out"],
    "lsh_1": ["<b>local shell</b>", "ls -l", "Settings", "&quot;working_directory&quot;: &quot;/&quot;"],
    "call_5": ["<b>local shell</b> returned", "&quot;stdout&quot;: &quot;a&quot;"],
    "apc_1": ["<b>apply patch</b>", "Update file <span>a.py</span>", "+1"],
    "apco_1": ["<b>apply patch</b> returned", "No such file", "failed"],
    "mcpl_1": ["<b>deep</b> tool list", "ask: Ask."],
    "mcpr_1": ["<b>ask</b> needs approval", "deep", "Arguments"],
    "mcpa_1": ["<b>Denied</b>", "mcpr_1", "Reason", "No."],
    "mcp_1": ["<b>ask</b>", "deep", "&quot;q&quot;: 1", "Error", "mcp_tool_execution_error"],
    "fs_1": ["<b>file search</b>", "Queries", "cats", "a.pdf, score 0.50", "Meow."],
    "ws_1": ["<b>web search</b> search", "cats\ndogs", "Sources", "https://a"],
    "ci_1": ["<b>code interpreter</b>", "print(1)", "Logs", "Image", "https://a/b.png", "image from a, not loaded"],
    "ig_1": ["<b>image generation</b>", "A cat.", "Error", "No.", "&quot;quality&quot;: &quot;xhigh&quot;"],
    "prog_1": ["<b>program</b>", "look()", "call_p"],
    "progo_1": ["<b>program</b> returned", "a cat"],
    "cmp_1": ["Compacted earlier items", "Encrypted, 6 B"],
    "cfg_1": ["Settings changed", "&quot;effort&quot;: &quot;low&quot;"],
    "at_1": ["<b>Tools added</b> by the developer", "look"],
}


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response without items."""
    return add_response(caller)


def page(lead: Client, response: Response) -> str:
    return text(lead.get(page_url(response)))


def transcript(lead: Client, response: Response, *bodies: dict[str, Any]) -> str:
    """Add items to the response and return the transcript."""
    add_items(response, Section.OUTPUT, *bodies)
    return page(lead, response).partition('aria-label="Transcript"')[2].partition("</section>")[0]


def test_every_item_type_has_an_expectation() -> None:
    assert SHOWN.keys() == SAMPLES.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_an_item_is_readable(lead: Client, response: Response, name: str) -> None:
    shown = transcript(lead, response, {**SAMPLES[name], "id": f"{name}_{response.pk}"})
    assert [words for words in SHOWN[name] if words not in shown] == []
    assert f"&quot;type&quot;: &quot;{SAMPLES[name]['type']}&quot;" not in shown


def test_binary_and_encrypted_content_is_not_shown(lead: Client, response: Response) -> None:
    url = "data:image/png;base64," + "A" * 400
    screen = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": url},
    }
    drawn = {"type": "image_generation_call", "status": "completed", "result": "A" * 4000}
    plot = {"type": "code_interpreter_call", "container_id": "c", "code": None}
    images = [{"type": "image", "url": url}]
    sealed = {"type": "compaction", "encrypted_content": "A" * 400}
    shown = transcript(lead, response, screen, drawn, {**plot, "outputs": images}, sealed)
    assert "AAAA" not in shown
    assert "data image, unknown type, 3.0 KB" in shown


def test_tool_names_include_their_namespace_or_server(lead: Client, response: Response) -> None:
    crm = {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [{"type": "function", "name": "f"}],
    }
    box = {"type": "mcp", "server_label": "box", "server_description": "Sums.", "allowed_tools": ["add", "note"]}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "server", "tools": [crm, box]}
    shown = transcript(lead, response, found)
    assert "crm (f): Customers.\nbox (add, note): Sums." in shown


def test_an_unknown_item_type_is_shown_as_json(lead: Client, response: Response) -> None:
    shown = transcript(lead, response, {"type": "new_thing", "body": "what it says"})
    assert "<b>new_thing</b>" in shown
    assert "&quot;body&quot;: &quot;what it says&quot;" in shown


def test_prompt_messages_precede_the_input(lead: Client, caller: Caller) -> None:
    messages = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "system", "content": "Be kind."},
    ]
    prompt = {"id": "pmpt_1", "version": "3"}
    response = add_response(caller, parameters={"instructions": messages, "prompt": prompt})
    whole = page(lead, response)
    assert whole.index("Be brief.") < whole.index("Be kind.")
    assert "version 3" in whole
    assert "&#x27;role&#x27;" not in whole


def test_details_show_moderation_results(lead: Client, caller: Caller) -> None:
    found = {"type": "moderation_result", "model": "judge", "flagged": True, "categories": {"violence": True}}
    failed = {"type": "error", "code": "server_error", "message": "It is away."}
    whole = page(lead, add_response(caller, moderation={"input": found, "output": failed}))
    expected = ["Moderation of input", "flagged", "violence, by judge", "check failed", "It is away."]
    assert [words for words in expected if words not in whole] == []


def test_a_discarded_turn_shows_its_reason(lead: Client, response: Response) -> None:
    add_turns(response, 1)
    with scope.team(response.team_id):
        response.turn_set.update(discarded={"defect": "The answer is no JSON.", "items": []})
    assert "The answer is no JSON." in text(lead.get(page_url(response, tab="attempts")))


# -- text and tool cards -----------------------------------------------------------------------------------------------

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PIXEL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def item_of(response: Response) -> Item:
    """Return the only item of the team."""
    with scope.team(response.team_id):
        return Item.objects.get(team_id=response.team_id)


def keep(caller: Caller, content: bytes, content_type: str, name: str = "a.bin") -> File:
    """Store a file of the caller's team."""
    upload = storage.IncomingFile(
        content=BytesIO(content),
        filename=name,
        content_type=content_type,
        size=len(content),
        purpose=Purpose.VISION,
    )
    file = async_to_sync(storage.write_file)(team_id=caller.team.pk, key_id=caller.key.pk, upload=upload)
    storage.publish_file(file)
    return file


def test_messages_show_markdown_and_their_source(lead: Client, response: Response) -> None:
    shown = transcript(lead, response, assistant_message("# Hi\n\n*you* ![x](https://evil.example/a.png)"))
    assert '<p class="c-h1">Hi</p>' in shown
    assert "x (image from evil.example, not loaded)" in shown
    assert "*you* ![x](https://evil.example/a.png)</pre>" in shown
    assert "<img" not in shown


def test_markup_in_items_is_escaped(lead: Client, response: Response) -> None:
    evil = "<script>alert(1)</script>"
    call = {**function_call_item(evil, f'{{"a": "{evil}"}}'), "id": f'"{evil}'}
    shown = transcript(lead, response, assistant_message(evil), call, {"type": "new_thing", "body": evil})
    assert "<script>" not in shown


def test_a_call_and_its_output_share_a_card(lead: Client, response: Response) -> None:
    answer = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    add_call(response, name="look", attempt=3)
    shown = transcript(lead, response, function_call_item("look", '{"at":1}'), answer)
    assert shown.count("<article") == 1
    expected = ["8 B → 5 B", "attempt 3", "250 ms", "sunny", "{&quot;at&quot;:1}</pre>"]
    assert [words for words in expected if words not in shown] == []


def test_hosted_calls_show_their_duration(lead: Client, response: Response) -> None:
    call = {"type": "mcp_call", "server_label": "box", "name": "add", "arguments": "{}", "output": "3"}
    add_call(response, kind="mcp", name="add", output="3")
    shown = transcript(lead, response, call)
    assert "250 ms" in shown
    assert shown.count(">3</pre>") == 1


def test_an_approval_shows_time_and_api_key(lead: Client, response: Response, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        Decision.objects.create(
            id="mcpr_x", team=caller.team, response=response, call_id="c", request="", definition="",
            state=DecisionState.GRANTED, answered_at=now(), answered_in=response.pk,
        )  # fmt: skip
    asked = {"id": "mcpr_x", "type": "mcp_approval_request", "server_label": "box", "name": "add", "arguments": "{}"}
    shown = transcript(lead, response, asked)
    assert f"UTC by API key {caller.key.name} in" in shown


# -- content loaded on demand ------------------------------------------------------------------------------------------


def test_a_long_text_is_loaded_in_plain_text_chunks(lead: Client, response: Response) -> None:
    long = "<b>" + "a" * 65_533 + "b" * 65_536 + "c"
    shown = transcript(lead, response, {**function_call_item("f", "{}"), "arguments": long})
    url = f"/admin/content/items/{item_of(response).pk}/text/0/"
    assert f'href="{url}?from=65536"' in shown
    middle = lead.get(url, {"from": "65536"})
    assert text(middle) == "b" * 65_536
    assert middle["X-Next"] == "131072"
    assert middle["Content-Type"] == "text/plain; charset=utf-8"
    assert middle["X-Content-Type-Options"] == "nosniff"
    end = lead.get(url, {"from": middle["X-Next"]})
    assert text(end) == "c"
    assert "X-Next" not in end


def test_a_long_output_of_a_hosted_call_is_loaded_in_chunks(lead: Client, response: Response) -> None:
    add_call(response, output="x" * 70_000)
    with scope.team(response.team_id):
        row = ToolCall.objects.get(response=response)
    url = f"/admin/content/calls/{row.pk}/output/"
    assert url in transcript(lead, response, function_call_item("f", "{}"))
    assert text(lead.get(url, {"from": "65536"})) == "x" * (70_000 - 65_536)
    assert lead.get(f"/admin/content/calls/{row.pk}/result/").status_code == 404


def test_an_inline_image_is_served_by_the_admin(lead: Client, response: Response) -> None:
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}
    shown = transcript(lead, response, image)
    url = f"/admin/content/items/{item_of(response).pk}/media/0/"
    assert f'<img src="{url}"' in shown
    got = lead.get(url)
    assert (got.content, got["Content-Type"]) == (PNG, "image/png")
    assert got["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert got["Content-Disposition"].startswith("inline")


@pytest.mark.parametrize(
    "url",
    [
        "data:image/svg+xml,<svg onload='alert(1)'/>",
        "data:text/html;base64,PHNjcmlwdD4=",
        "data:image/png;base64,PHNjcmlwdD4=",
        "data:,x",
    ],
)
def test_an_unsafe_inline_image_is_only_downloaded(lead: Client, response: Response, url: str) -> None:
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
    transcript(lead, response, image)
    got = lead.get(f"/admin/content/items/{item_of(response).pk}/media/0/")
    assert got["Content-Type"] == "application/octet-stream"
    assert got["Content-Disposition"].startswith("attachment")


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_files_of_the_team_are_served_by_the_admin(lead: Client, response: Response, caller: Caller) -> None:
    picture, page = keep(caller, PNG, "image/png"), keep(caller, b"<script>", "text/html", "a.html")
    content = [{"type": "input_image", "file_id": picture.pk}, {"type": "input_file", "file_id": page.pk}]
    shown = transcript(lead, response, {"type": "message", "role": "user", "content": content})
    assert f'<img src="/admin/content/files/{picture.pk}/"' in shown
    assert f'<img src="/admin/content/files/{page.pk}/"' not in shown
    assert b"".join(lead.get(f"/admin/content/files/{picture.pk}/")) == PNG
    saved = lead.get(f"/admin/content/files/{page.pk}/")
    assert saved["Content-Type"] == "application/octet-stream"
    assert saved["Content-Disposition"] == 'attachment; filename="a.html"'


# -- content access ----------------------------------------------------------------------------------------------------


def test_structure_is_visible_without_content_access(auditor: Client, response: Response) -> None:
    secret = "zebra"
    add_call(response, name="look", output=secret, error=secret)
    found = {"type": "file_search_call", "queries": [secret], "results": [{"filename": secret, "text": secret}]}
    patch = {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": secret}}
    cited = assistant_message(secret)
    cited["content"][0]["annotations"] = [{"type": "url_citation", "url": f"https://{secret}.example", "title": secret}]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": secret}]}
    add_items(response, Section.INPUT, user_message(secret))
    add_items(response, Section.OUTPUT, function_call_item("look", secret), found, patch, cited, thought)
    shown = page(auditor, response)
    assert secret not in shown
    expected = ["<b>look</b>", "file search", "250 ms", "5 B", "Content hidden"]
    assert [words for words in expected if words not in shown] == []


def test_payloads_require_content_access(
    auditor: Client, operator: Client, stranger: Client, response: Response, caller: Caller
) -> None:
    add_items(response, Section.INPUT, user_message("zebra"))
    add_call(response, output="zebra")
    file = keep(caller, b"zebra", "text/plain")
    with scope.team(response.team_id):
        call = ToolCall.objects.get(response=response).pk
    key = item_of(response).pk
    for url in (f"items/{key}/text/0", f"items/{key}/media/0", f"calls/{call}/output", f"files/{file.pk}"):
        for client, status in ((auditor, 403), (operator, 403), (stranger, 404)):
            got = client.get(f"/admin/content/{url}/")
            assert (got.status_code, b"zebra" in got.content) == (status, False), url


def test_reading_by_a_non_member_is_audited(operator: Client, response: Response) -> None:
    operator.post("/admin/content/reveal/", {"team": response.team_id, "reason": "ticket 12", "next": "/admin/"})
    add_items(response, Section.INPUT, user_message("zebra"))
    key = item_of(response).pk
    assert text(operator.get(f"/admin/content/items/{key}/text/0/")) == "zebra"
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=str(key)).exists()
