"""Every type of item through the API: sent, stored, listed, parsed by the SDK, and referenced."""

from typing import Any, get_args

import pytest
from openai import OpenAI
from openai.types.responses import ResponseIncludable, ResponseItem

from core.clock import now
from responses.models import ToolCall
from tenants import scope
from tests.support.api import Api, error
from tests.support.items import ITEMS
from tests.support.upstream import Script

EVERYTHING: list[ResponseIncludable] = [
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
]
QUESTION = {"id": "msg_q", "type": "message", "status": "completed", "role": "user"}
ASKED = {**QUESTION, "content": [{"type": "input_text", "text": "Well?"}]}


@pytest.fixture
def response_id(api: Api, script: Script) -> str:
    """Create a response with one item of each type as input; returns its id."""
    script.say("So it is.")
    response_id: str = api.create(model=script.model, input=[*ITEMS.values(), ASKED])["id"]
    return response_id


def test_every_item_is_listed_as_it_was_sent(api: Api, response_id: str) -> None:
    listed = api.input_items(response_id, limit=100, include=",".join(EVERYTHING))
    assert {item["id"]: item for item in listed} == {**ITEMS, "msg_q": ASKED}
    assert [item["id"] for item in listed] == [*ITEMS, "msg_q"]


def test_additional_fields_of_every_item_are_kept(api: Api, script: Script) -> None:
    script.say("So it is.")
    newer = {name: {**item, "later": {"a": 1}} for name, item in ITEMS.items()}
    response_id = api.create(model=script.model, input=[*newer.values(), ASKED])["id"]
    listed = api.input_items(response_id, limit=100, include=",".join(EVERYTHING))
    assert {item["id"]: item for item in listed} == {**newer, "msg_q": ASKED}
    assert "later" not in str(script.bodies)


def test_the_sdk_parses_every_item_by_its_type(client: OpenAI, response_id: str) -> None:
    listed = list(client.responses.input_items.list(response_id, order="asc", limit=10))
    assert [item.id for item in listed] == [*ITEMS, "msg_q"]
    assert {type(item) for item in listed} <= set(get_args(get_args(ResponseItem)[0]))


def test_every_item_can_be_referenced(api: Api, script: Script, response_id: str) -> None:
    script.say("Still.")
    references = [{"type": "item_reference", "id": name} for name in ITEMS]
    second = api.create(model=script.model, input=[*references, ASKED])["id"]
    one, two = (api.input_items(name, limit=100) for name in (response_id, second))
    assert two == one
    assert script.messages[1] == script.messages[0]


@pytest.mark.slow
def test_the_sdk_can_send_back_items_it_has_listed(client: OpenAI, script: Script, response_id: str) -> None:
    script.say("Again.")
    listed = client.responses.input_items.list(response_id, order="asc", limit=100, include=EVERYTHING)
    again: Any = [item.model_dump() for item in listed.data]
    client.responses.create(model=script.model, input=again)
    assert script.messages[1] == script.messages[0]


def test_an_unknown_type_is_rejected_with_the_known_ones(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "input": [ASKED, {"type": "telepathy"}]})
    assert error(answer) == (400, "input[1]", "invalid_value")
    assert "'custom_tool_call_output'" in answer.json()["error"]["message"]


CALLS = ("fc_1", "ctc_1", "cu_1", "sh_1", "lsh_1", "apc_1")
OUTPUTS = ("fco_1", "ctco_1", "cuo_1", "sho_1", "call_5", "apco_1")


def test_outputs_of_every_type_match_their_calls(api: Api, script: Script) -> None:
    script.say("Wait.").say("So it is.")
    first = api.create(model=script.model, input="Hi")["id"]
    team_id = api.caller.team.pk
    columns = {"team_id": team_id, "response_id": first, "turn": 1, "arguments": "{}", "started_at": now()}
    with scope.team(team_id):
        for number in range(1, 7):
            ToolCall.objects.create(**columns, call_id=f"call_{number}", name="x", kind="function", status="waiting")
    answered = [ITEMS[name] for name in (*CALLS, *OUTPUTS)]
    api.create(model=script.model, input=answered, previous_response_id=first)
    with scope.team(team_id):
        rows = ToolCall.objects.filter(response_id=first).order_by("call_id").values_list("status", "output")
        assert list(rows) == [
            ("completed", "a cat"),
            ("completed", "1"),
            ("completed", ""),
            ("completed", "a\nb"),
            ("completed", '{"stdout": "a"}'),
            ("failed", "No such file"),
        ]
