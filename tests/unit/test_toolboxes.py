"""Combination of several toolboxes."""

from responses.engine.calls.toolbox import NoTools
from responses.tools.combination import combine
from tests.support.chunks import calls, text
from tests.support.runs import begin
from tests.support.scripted import ScriptedModel, ScriptedTools


async def test_each_call_goes_to_the_toolbox_with_its_tool() -> None:
    one, other = ScriptedTools(search=["a page"]), ScriptedTools(read=["its text"])
    model = ScriptedModel(calls(read="{}", search="{}"), text("Done"))
    _ = [step async for step in begin(model, combine([one, other])).steps()]
    one.verify()
    other.verify()
    assert [tool.name for tool in model.requests[0].sampling.tools] == ["search", "read"]


async def test_a_name_that_no_toolbox_has_is_not_hosted() -> None:
    assert combine([ScriptedTools(a=[]), ScriptedTools(b=[])]).kind("c") is None


def test_one_toolbox_is_returned_unchanged_and_none_becomes_no_tools() -> None:
    box = ScriptedTools(a=[])
    assert combine([box]) is box
    assert isinstance(combine([]), NoTools)
