"""Arithmetic of the benchmark report, and its two C programs tested against each other."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from openai.types.responses import Response

from benchmarks.load import Answers, Measurement, Pace, Spread, Target, measure, program
from benchmarks.matrix import FULL, SMOKE, Cell, Group, Session, cells
from benchmarks.profiling import ROOT, summarised
from benchmarks.report import Count, Floor, Results, floors
from benchmarks.stack import Stack, ask
from launcher.address import any_free_port
from launcher.processes import wait_until

TIMES = Spread(count=9, p50=1, p95=2, p99=3, max=4)


def measured(*, per_second: float = 100, cpu_ms: float = 1, failed: int = 0) -> Measurement:
    return Measurement(
        connections=64,
        started=10,
        completed=10 - failed,
        failed=failed,
        measured=9,
        seconds=1,
        per_second=per_second,
        events_per_request=72,
        driver_cpu_seconds=0,
        total_ms=TIMES,
        first_event_ms=TIMES,
        first_delta_ms=TIMES,
        connect_ms=TIMES,
        delta_age_ms=None,
        failures={"bad_status": failed},
        first_error="",
        cpu_ms_per_request=cpu_ms,
        database_ms_per_request=None,
        resident_mb=100,
        foreign_cores=0,
    )


def streams(*, proxy: Measurement, platform: Measurement) -> Results:
    return {("stream c=64", "proxy"): proxy, ("stream c=64", "platform"): platform}


def missed(results: Results) -> list[str]:
    return [floor.name for floor in floors(results=results, counts=[], turns=FULL.turns, speed=True) if not floor.holds]


def test_a_platform_within_the_limits_of_the_report_passes() -> None:
    assert missed(streams(proxy=measured(per_second=1200), platform=measured(per_second=100, cpu_ms=14))) == []


def test_a_slower_or_more_expensive_platform_fails() -> None:
    names = missed(streams(proxy=measured(per_second=1201), platform=measured(per_second=100, cpu_ms=14.1)))
    assert names == ["streams/s c=64: proxy ÷ platform", "CPU per stream c=64: platform ÷ proxy"]


def test_a_single_failed_request_fails_even_a_smoke_run() -> None:
    results = streams(proxy=measured(), platform=measured(failed=1))
    judged = floors(results=results, counts=[], turns=SMOKE.turns, speed=False)
    assert [floor.figure for floor in judged if not floor.holds] == [1]


def test_a_missing_figure_fails() -> None:
    assert not Floor(name="delay", figure=None, limit=40).holds


def test_a_missing_row_and_a_surplus_row_both_fail() -> None:
    counts = [Count(kind="items", expected=4, found=found) for found in (3, 4, 5)]
    judged = floors(results={}, counts=counts, turns=SMOKE.turns, speed=False)
    assert [floor.holds for floor in judged] == [True, False, True, False]


def test_rounds_are_combined_into_medians_and_the_sum_of_failures() -> None:
    rounds = [measured(per_second=rate, failed=1) for rate in (10, 30, 20)]
    total = Measurement.of_rounds(rounds)
    assert (total.per_second, total.failed, total.started) == (20, 3, 30)


def test_an_unstored_response_leaves_no_items() -> None:
    inline = next(cell for cell in cells([Group.CHAIN], SMOKE) if cell.inline)
    target = Target(name="platform", url="http://127.0.0.1:1", pid=1, api="responses", headers={})
    session = Session(stack=Stack(mock=target, proxy=target, platform=target, proxy_parts="", admin=""))
    session.count(inline, measured())
    expected = session.expected_rows()
    assert (expected["responses"], expected["items"]) == (10, 0)


def test_the_chain_sends_the_same_messages_to_all_servers() -> None:
    last = next(cell for cell in cells([Group.CHAIN], FULL) if cell.history and not cell.inline)
    assert len(last.body(api="chat", previous=None)["messages"]) == 2 * 199 + 1
    assert last.body(api="responses", previous="resp_1")["previous_response_id"] == "resp_1"


def test_a_profile_counts_own_time_for_the_innermost_frame_only() -> None:
    ours, library = f"run ({ROOT}/responses/runner.py:9)", "loads (/x/lib/python3.11/site-packages/orjson/a.py:1)"
    profile = summarised(f"thread (1): main;{ours};{library} 3\nthread (1): main;{ours} 1\n")
    assert (profile.samples, profile.packages["orjson"], profile.packages["responses (ours)"]) == (4, 3, 1)
    assert profile.ours["run (./responses/runner.py)"] == 4


@pytest.fixture(scope="module")
def mock() -> Iterator[Target]:
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    port = any_free_port()
    process = subprocess.Popen([program("mock"), "--port", str(port)])
    target = Target(name="mock", url=f"http://127.0.0.1:{port}", pid=process.pid, api="chat", headers={})
    assert wait_until(lambda: drive(target, model="mock-t1").failed == 0, seconds=90)
    yield target
    process.terminate()
    process.wait()


def drive(target: Target, *, model: str, stream: bool = True, stamped: bool = False) -> Answers:
    pace = Pace(connections=3, requests=5, stamped=stamped)
    cell = Cell(name="test", stream=stream, model=model, pace=pace)
    return measure(target, body=cell.body(api="chat", previous=None), pace=pace)


@pytest.mark.slow
def test_the_driver_counts_every_event_of_every_stream(mock: Target) -> None:
    answers = drive(mock, model="mock-t7")
    # A role, seven tokens, the finish reason, the usage and the end.
    assert (answers.completed, answers.failed, answers.events_per_request) == (5, 0, 11)


def test_the_driver_measures_the_age_of_each_delta(mock: Target) -> None:
    answers = drive(mock, model="mock-t4-d2-ts", stamped=True)
    assert answers.delta_age_ms is not None
    assert (answers.delta_age_ms.count, 0 < answers.delta_age_ms.p50 < 1000) == (20, True)


def test_the_mock_keeps_its_delays(mock: Target) -> None:
    answers = drive(mock, model="mock-t3-d10-f20")
    assert answers.first_delta_ms is not None
    assert answers.total_ms is not None
    assert answers.first_delta_ms.p50 >= 20
    assert answers.total_ms.p50 >= 40


def test_the_mock_streams_events_of_the_responses_api(mock: Target) -> None:
    target = replace(mock, api="responses")
    cell = Cell(name="test", stream=True, model="mock-t7", pace=Pace(connections=3, requests=5))
    answers = measure(target, body=cell.body(api="responses", previous=None), pace=cell.pace)
    # Four events that open the message, seven deltas, and four that end it and the response.
    assert (answers.completed, answers.failed, answers.events_per_request) == (5, 0, 15)
    made = ask(target, "POST", "/responses", {"model": "mock-t7", "input": "?"})
    assert Response.model_validate(made).output_text == " the model answers with plain tokens so"


def test_the_mock_calls_a_function_until_it_gets_the_output(mock: Target) -> None:
    question: dict[str, object] = {"role": "user", "content": "?"}
    asked = {"model": "mock-call-t2", "messages": [question]}
    answered = {**asked, "messages": [question, {"role": "tool", "tool_call_id": "call_1", "content": "9"}]}
    first, second = (ask(mock, "POST", "/chat/completions", body)["choices"][0] for body in (asked, answered))
    assert first["finish_reason"] == "tool_calls"
    assert json.loads(first["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert (second["finish_reason"], second["message"]["content"]) == ("stop", " the model")


def test_an_error_status_is_a_failure_with_its_message(mock: Target) -> None:
    answers = drive(mock, model="mock-e503", stream=False)
    assert (answers.failures["bad_status"], answers.completed) == (5, 0)
    assert "as the model name asked" in answers.first_error
