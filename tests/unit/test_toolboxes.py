"""The toolbox of a run with several hosted tools."""

import pytest

from engine.calls.toolbox import Toolbox
from tests.support.chunks import calls, text
from tests.support.runs import begin
from tests.support.scripted import ScriptedModel, ScriptedTools


async def test_each_call_goes_to_the_tool_with_its_name() -> None:
    one, other = ScriptedTools(search=["a page"]), ScriptedTools(read=["its text"])
    model = ScriptedModel(calls(read="{}", search="{}"), text("Done"))
    _ = [step async for step in begin(model, Toolbox([one, other])).steps()]
    one.verify()
    other.verify()
    assert [tool.name for tool in model.requests[0].sampling.tools] == ["search", "read"]


async def test_a_name_that_no_tool_has_is_not_hosted() -> None:
    assert Toolbox([ScriptedTools(a=[]), ScriptedTools(b=[])]).kind("c") is None


def test_a_tool_is_found_by_its_name_and_an_empty_toolbox_hosts_nothing() -> None:
    tool = ScriptedTools(a=[])
    assert Toolbox([tool])["a"] is tool
    assert (Toolbox().functions(), Toolbox().kind("a"), Toolbox().concurrency) == ((), None, 1)
    with pytest.raises(LookupError):
        Toolbox()["a"]
