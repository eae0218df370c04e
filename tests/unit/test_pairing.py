"""Pairing of calls and outputs, and the errors for items without a counterpart."""

from typing import Any

import pytest

from conversations.items import from_wire
from core.errors import ToolCallMismatch
from responses.requests import pairing
from tests.support.items import SAMPLES

CALLS = {
    "fc_1": ("fco_1", "function call", "call_1"),
    "ctc_1": ("ctco_1", "custom tool call", "call_2"),
    "cu_1": ("cuo_1", "computer call", "call_3"),
    "sh_1": ("sho_1", "shell call", "call_4"),
    "lsh_1": ("call_5", "local shell call", "call_5"),
    "apc_1": ("apco_1", "apply patch call", "call_6"),
    "tsc_1": ("tso_1", "tool search call", "call_7"),
}
every_call = pytest.mark.parametrize(("call", "output", "words", "call_id"), [(c, *more) for c, more in CALLS.items()])


def check(*bodies: str | dict[str, Any]) -> str | None:
    """Return the error for these items; None if all calls and outputs are paired."""
    items = [from_wire(SAMPLES[body] if isinstance(body, str) else body) for body in bodies]
    items = [item.model_copy(update={"async_": None}) if hasattr(item, "async_") else item for item in items]
    try:
        pairing.check(items)
    except ToolCallMismatch as mismatch:
        return mismatch.message
    return None


@every_call
def test_an_output_matches_an_earlier_call(call: str, output: str, words: str, call_id: str) -> None:
    assert check(call, "msg_1", output) is None


@every_call
def test_an_output_without_a_call_is_reported(call: str, output: str, words: str, call_id: str) -> None:
    assert check(output) == f"No tool call found for {words} output with call_id {call_id}."
    assert check(output, call) == f"No tool call found for {words} output with call_id {call_id}."


@every_call
def test_a_call_without_an_output_is_reported(call: str, output: str, words: str, call_id: str) -> None:
    assert check(call, "msg_1") == f"No tool output found for {words} {call_id}."


def test_an_output_matches_one_call_with_its_id() -> None:
    """Some models count their calls anew in each turn."""
    again = {**SAMPLES["fc_1"], "id": "fc_2"}
    assert check("fc_1", "fco_1", again) == "No tool output found for function call call_1."
    assert check("fc_1", "fco_1", again, "fco_1") is None


def test_repeated_pairs_of_call_and_output_are_accepted() -> None:
    assert check("fc_1", "fc_1", "fco_1") is None
    assert check("fc_1", "fco_1", "fc_1") is None
    assert check("fc_1", "fco_1", "fco_1") is None


def test_an_output_of_another_type_does_not_match() -> None:
    other = {**SAMPLES["ctco_1"], "call_id": "call_1"}
    assert check("fc_1", other) == "No tool call found for custom tool call output with call_id call_1."


@pytest.mark.parametrize("name", ["fc_1", "ctc_1"])
def test_an_asynchronous_call_needs_no_output(name: str) -> None:
    pairing.check([from_wire({**SAMPLES[name], "async": True})])
    with pytest.raises(ToolCallMismatch):
        pairing.check([from_wire({**SAMPLES[name], "async": False})])


@pytest.mark.parametrize(
    "item",
    [
        {**SAMPLES["tsc_1"], "execution": "server", "call_id": None},
        {**SAMPLES["tso_1"], "execution": "server", "call_id": None},
        {**SAMPLES["sh_1"], "environment": {"type": "container_reference", "container_id": "cntr_1"}},
        *(SAMPLES[name] for name in ("mcp_1", "mcpr_1", "fs_1", "ws_1", "ci_1", "ig_1", "prog_1", "progo_1")),
    ],
)
def test_a_hosted_call_needs_no_output(item: dict[str, Any]) -> None:
    assert check(item) is None


def test_an_approval_response_matches_its_request() -> None:
    assert check("mcpr_1", "mcpa_1") is None
    assert check("mcpa_1") == "No approval request found for approval response with approval_request_id mcpr_1."


@pytest.mark.parametrize(
    ("name", "call_id", "failed", "text"),
    [
        ("fco_1", "call_1", False, "a cat"),
        ("ctco_1", "call_2", False, "1"),
        ("cuo_1", "call_3", False, ""),
        ("sho_1", "call_4", False, "a\nb"),
        ("call_5", "call_5", False, '{"stdout": "a"}'),
        ("apco_1", "call_6", True, "No such file"),
    ],
)
def test_the_status_of_a_call_is_read_from_its_output(name: str, call_id: str, failed: bool, text: str) -> None:
    answer = pairing.CallOutput(call_id=call_id, failed=failed, text=text)
    assert pairing.call_output(SAMPLES[name]) == answer


@pytest.mark.parametrize("name", ["msg_1", "fc_1", "mcpa_1", "mcp_1", "progo_1"])
def test_other_items_are_not_outputs(name: str) -> None:
    assert pairing.call_output(SAMPLES[name]) is None
