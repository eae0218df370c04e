"""Every type of item in a transcript: readable, without bytes, and never as the JSON that it is."""

from typing import Any

import pytest
from django.test import Client

from conversations.models import Section
from responses.models import Response
from tenants import scope
from tests.admin.rows import add_response, add_turns, page_of, say, text
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
    "rs_1": ["Hm.", "In short", "It thought.", "Its sealed form has 6 B."],
    "fc_1": ["eyes.look", "Arguments", "&quot;at&quot;: &quot;it&quot;", "call_1", "completed"],
    "fco_1": ["<b>eyes.look</b> returned", "a cat", "data image, image/png", "file-1"],
    "ctc_1": ["db.sql", "Input", "SELECT 1", "call_2"],
    "ctco_1": ["<b>tool</b> returned", "call_2"],
    "tsc_1": ["<b>tool search</b> by the client", "&quot;query&quot;: &quot;eyes&quot;"],
    "tso_1": ["<b>tool search</b> returned, by the client", "Tools", "look"],
    "cu_1": ["computer", "click x=1 y=2 keys=CTRL button=left", "path=(1,2),(3,4)", "Safety checks", "Is it?"],
    "cuo_1": ["<b>computer</b> returned", "Screenshot", "file-1", "Acknowledged safety checks"],
    "sh_1": ["<b>shell</b>", "Commands", "ls\npwd", "Limits", "&quot;timeout_ms&quot;: 1000"],
    "sho_1": ["Command 1, exit 0", "Command 2, timed out"],
    "lsh_1": ["<b>local shell</b>", "ls -l", "Settings", "&quot;working_directory&quot;: &quot;/&quot;"],
    "call_5": ["<b>local shell</b> returned", "&quot;stdout&quot;: &quot;a&quot;"],
    "apc_1": ["<b>apply patch</b>", "Update file <span>a.py</span>", "+1"],
    "apco_1": ["<b>apply patch</b> returned", "No such file", "failed"],
    "mcpl_1": ["<b>deep</b> listed its tools", "ask: Ask."],
    "mcpr_1": ["<b>ask</b> needs approval", "deep", "Arguments"],
    "mcpa_1": ["<b>Denied</b>", "mcpr_1", "Reason", "No."],
    "mcp_1": ["<b>ask</b>", "deep", "&quot;q&quot;: 1", "Error", "mcp_tool_execution_error"],
    "fs_1": ["<b>file search</b>", "Queries", "cats", "a.pdf, score 0.50", "Meow."],
    "ws_1": ["<b>web search</b> search", "cats\ndogs", "Sources", "https://a"],
    "ci_1": ["<b>code interpreter</b>", "print(1)", "Logs", "Image", "https://a/b.png", "image from a, not loaded"],
    "ig_1": ["<b>image generation</b>", "A cat.", "Error", "No.", "&quot;quality&quot;: &quot;xhigh&quot;"],
    "prog_1": ["<b>program</b>", "look()", "call_p"],
    "progo_1": ["<b>program</b> returned", "a cat"],
    "cmp_1": ["Earlier items, compacted", "Sealed, 6 B"],
    "cfg_1": ["Settings changed", "&quot;effort&quot;: &quot;low&quot;"],
    "at_1": ["<b>Tools added</b> by the developer", "look"],
}


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response without items."""
    return add_response(caller)


def page(lead: Client, response: Response) -> str:
    return text(lead.get(page_of(response)))


def transcript(lead: Client, response: Response, *bodies: dict[str, Any]) -> str:
    """The part of the page that shows these items."""
    say(response, Section.OUTPUT, *bodies)
    return page(lead, response).partition('aria-label="Transcript"')[2].partition("</section>")[0]


def test_a_sample_of_every_item_is_looked_at() -> None:
    assert SHOWN.keys() == SAMPLES.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_an_item_is_readable(lead: Client, response: Response, name: str) -> None:
    shown = transcript(lead, response, {**SAMPLES[name], "id": f"{name}_{response.pk}"})
    assert [words for words in SHOWN[name] if words not in shown] == []
    assert f"&quot;type&quot;: &quot;{SAMPLES[name]['type']}&quot;" not in shown


def test_no_item_shows_bytes_or_what_is_sealed(lead: Client, response: Response) -> None:
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


def test_tools_of_namespaces_and_servers_are_named(lead: Client, response: Response) -> None:
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


def test_a_type_that_nobody_knows_is_shown_as_json(lead: Client, response: Response) -> None:
    shown = transcript(lead, response, {"type": "new_thing", "body": "what it says"})
    assert "<b>new_thing</b>" in shown
    assert "&quot;body&quot;: &quot;what it says&quot;" in shown


def test_the_messages_of_a_prompt_stand_before_the_input(lead: Client, caller: Caller) -> None:
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


def test_what_a_moderation_model_found_is_among_the_facts(lead: Client, caller: Caller) -> None:
    found = {"type": "moderation_result", "model": "judge", "flagged": True, "categories": {"violence": True}}
    failed = {"type": "error", "code": "server_error", "message": "It is away."}
    whole = page(lead, add_response(caller, moderation={"input": found, "output": failed}))
    told = ["Moderation of the input", "flagged", "violence, by judge", "not judged", "It is away."]
    assert [words for words in told if words not in whole] == []


def test_a_turn_that_does_not_count_says_why(lead: Client, response: Response) -> None:
    add_turns(response, 1)
    with scope.team(response.team_id):
        response.turn_set.update(discarded={"defect": "The answer is no JSON.", "items": []})
    assert "The answer is no JSON." in text(lead.get(page_of(response, tab="attempts")))
