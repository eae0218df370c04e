"""Checks of the chaos benchmark under mixed load: requests affected by a fault, and wrong histories."""

from typing import Any

import pytest

from benchmarks.chaos.availability import effects
from benchmarks.chaos.checking_upstream import answer_to, faults_of
from benchmarks.chaos.clients import Request, UnavailableError, WrongAnswerError, check_output
from benchmarks.chaos.faults import RECOVERY_SECONDS, Window

WINDOW = Window(kind="web killed", began=100.0, ended=104.0)


def user(name: str) -> dict[str, Any]:
    return {"role": "user", "content": f"{name} plain"}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


FIRST, SECOND = answer_to("t1.7.1"), answer_to("t1.7.2")


@pytest.mark.parametrize(("began", "ended"), [(99, 101), (101, 102), (90, 200), (104 + RECOVERY_SECONDS - 1, 200)])
def test_a_request_that_overlaps_a_fault_or_its_recovery_is_affected(began: float, ended: float) -> None:
    assert WINDOW.hits(began, ended)


@pytest.mark.parametrize(("began", "ended"), [(90, 100), (104 + RECOVERY_SECONDS, 200)])
def test_a_request_before_or_after_a_fault_is_not_affected(began: float, ended: float) -> None:
    assert not WINDOW.hits(began, ended)


def test_the_last_failure_after_a_fault_is_reported() -> None:
    requests = [
        Request(kind="JSON", name="t1.1.1", began=began, ended=began + 1, failure=failure)
        for began, failure in ((101.0, "503"), (106.5, "503"), (109.0, ""), (120.0, "503"))
    ]
    [effect] = effects([WINDOW], requests)
    assert (effect.requests, effect.failed, effect.seconds) == (3, 2, 2.5)


@pytest.mark.parametrize(
    "messages",
    [
        [user("t1.7.1")],
        [user("t1.7.1"), assistant(FIRST), user("t1.7.2"), assistant(SECOND), user("t1.7.3")],
        [user("t1.7.1"), assistant(FIRST[:20]), user("t1.7.1"), assistant(FIRST), user("t1.7.2")],
    ],
    ids=["first", "third", "repeated"],
)
def test_a_complete_history_has_no_defects(messages: list[dict[str, Any]]) -> None:
    assert faults_of(messages) == []


@pytest.mark.parametrize(
    "messages",
    [
        [user("t1.7.2")],
        [user("t1.7.1"), user("t1.7.2")],
        [user("t1.7.1"), assistant(FIRST[:20]), user("t1.7.2")],
        [user("t1.7.1"), assistant(SECOND), user("t1.7.2")],
        [user("t2.9.1"), assistant(answer_to("t2.9.1")), user("t1.7.2")],
    ],
    ids=["missing turn", "missing answer", "incomplete answer", "another answer", "another team"],
)
def test_a_wrong_history_is_reported(messages: list[dict[str, Any]]) -> None:
    assert faults_of(messages)


def test_an_interrupted_answer_may_precede_the_complete_one() -> None:
    check_output("t1.7.1", [message(FIRST[:10]), message(FIRST)])


@pytest.mark.parametrize("texts", [[], [FIRST[:10]], [SECOND], [SECOND, FIRST]])
def test_a_wrong_output_is_reported(texts: list[str]) -> None:
    with pytest.raises(WrongAnswerError):
        check_output("t1.7.1", [message(text) for text in texts])


def test_a_failed_tool_is_reported() -> None:
    call = {"type": "mcp_call", "output": None, "error": {"message": "refused"}}
    with pytest.raises(UnavailableError):
        check_output("t1.7.1", [call, message(FIRST)])
