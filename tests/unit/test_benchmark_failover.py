"""Checks of the failover benchmark: what clients have read, the attempts, outages and usage records."""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from benchmarks.failover.cases import APIS, CASES, EMBEDDINGS, Case, Cell, Fault, Outcome, cells
from benchmarks.failover.clients import Reply, Result, outcome_of, read
from benchmarks.failover.evaluation import RECOVERY_SECONDS, Outage, outage_faults, report, verified
from benchmarks.failover.upstream import Attempt, other_text_for, text_for
from benchmarks.failover.usage import usage_faults

NAME = "reset.chat.stream.1.0"
TEXT, OTHER = text_for(NAME), other_text_for(NAME)
HALF = TEXT[: len(TEXT) // 2]


def case(name: str) -> Case:
    """Return the case with this name."""
    (found,) = (row for row in CASES if row.name == name)
    return found


def cell(name: str = "reset", *, api: str = "chat", streamed: bool = True) -> Cell:
    return Cell(case=case(name), api=api, streamed=streamed)


# -- outcomes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(text=TEXT, is_complete=True), Outcome.WHOLE),
        (Reply(text=OTHER, is_complete=True), Outcome.WHOLE),
        (Reply(text=HALF, is_complete=True), Outcome.TRUNCATED),
        (Reply(text="", is_complete=True), Outcome.TRUNCATED),
        (Reply(text=HALF + TEXT, is_complete=True), Outcome.WRONG),
        (Reply(text=HALF + OTHER, is_complete=True), Outcome.WRONG),
        (Reply(text=HALF, error="server_error"), Outcome.FAILED),
        (Reply(text=HALF + "?", error="server_error"), Outcome.WRONG),
        (Reply(error="server_error", status=502), Outcome.ERROR),
        (Reply(text=HALF), Outcome.BROKEN),
        (Reply(text=TEXT), Outcome.BROKEN),
        (Reply(text=HALF, is_late=True), Outcome.LATE),
    ],
)
def test_the_outcome_follows_from_the_text_and_the_reported_end(reply: Reply, outcome: Outcome) -> None:
    assert outcome_of(reply, [TEXT, OTHER]) is outcome


def frames(*events: dict[str, Any], done: bool = False) -> bytes:
    """Return server-sent events."""
    return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n" * done


def response(status: str, text: str, *, error: str = "") -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    output = [{"type": "message", "content": [part]}]
    return {"status": status, "output": output, "error": {"code": error} if error else None}


def delta(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text}


def chunk(text: str = "", *, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


BLOCK = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}
STOP = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"})
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "No."}}
COMPLETED = {"type": "response.completed", "response": response("completed", "Hi")}
FAILED = {"type": "response.failed", "response": response("failed", "Hi", error="server_error")}


@pytest.mark.parametrize(
    ("api", "content", "reply"),
    [
        ("responses", frames(delta("H"), delta("i"), COMPLETED), Reply(text="Hi", is_complete=True)),
        ("responses", frames(delta("Hi"), FAILED), Reply(text="Hi", error="server_error")),
        ("responses", frames({"type": "error", "error": {"code": "invalid_prompt"}}), Reply(error="invalid_prompt")),
        ("responses", frames(delta("Hi")), Reply(text="Hi")),
        ("responses", frames(delta("H"), COMPLETED), Reply(text="H|Hi", is_complete=True)),
        ("chat", frames(chunk("Hi"), chunk(finish="stop"), done=True), Reply(text="Hi", is_complete=True)),
        ("chat", frames(chunk("Hi"), chunk(finish="stop")), Reply(text="Hi")),
        ("chat", frames(chunk("Hi"), done=True), Reply(text="Hi")),
        ("chat", frames(chunk("Hi"), {"error": {"code": "server_error"}}), Reply(text="Hi", error="server_error")),
        ("chat", frames(chunk("Hi")) + b'data: {"cho', Reply(text="Hi")),
        ("messages", frames(BLOCK, *STOP), Reply(text="Hi", is_complete=True)),
        ("messages", frames(BLOCK, STOP[0]), Reply(text="Hi")),
        ("messages", frames(BLOCK, OVERLOADED), Reply(text="Hi", error="overloaded_error")),
    ],
)
def test_streams_are_read_with_their_reported_end(api: str, content: bytes, reply: Reply) -> None:
    assert read(cell(api=api), 200, content) == reply


@pytest.mark.parametrize(
    ("api", "status", "document", "reply"),
    [
        ("responses", 200, response("completed", "Hi"), Reply(text="Hi", is_complete=True)),
        ("responses", 200, response("incomplete", "Hi"), Reply(text="Hi")),
        (
            "chat",
            200,
            {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]},
            Reply(text="Hi", is_complete=True),
        ),
        (
            "messages",
            200,
            {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
            Reply(text="Hi", is_complete=True),
        ),
        ("chat", 429, {"error": {"code": "rate_limit_exceeded"}}, Reply(error="rate_limit_exceeded", status=429)),
        ("messages", 529, OVERLOADED, Reply(error="overloaded_error", status=529)),
    ],
)
def test_documents_are_read_with_their_status(api: str, status: int, document: dict[str, Any], reply: Reply) -> None:
    assert read(cell(api=api, streamed=False), status, orjson.dumps(document)) == reply


def test_a_document_that_breaks_off_is_no_end() -> None:
    assert outcome_of(read(cell(streamed=False), 200, b'{"choices": ['), [TEXT]) is Outcome.BROKEN


# -- attempts ----------------------------------------------------------------------------------------------------------


def attempt(target: str = "primary", *, name: str = NAME, began: float = 0.0, **values: Any) -> Attempt:
    """Return an attempt whose answer was sent completely."""
    attempt = Attempt(
        id=f"up-{target}-{began}",
        run=name,
        path="/chat/completions",
        number=0,
        cell="reset.chat.stream",
        target=target,
        began=began,
        streamed=True,
        state="sent",
        input=10,
        output=20,
        cost=Decimal("0.0001"),
    )
    return replace(attempt, **values)


def result(reply: Reply, at: Cell) -> Result:
    return Result(cell=at, name=NAME, began=0.0, seconds=1.0, reply=reply)


WHOLE = Reply(text=TEXT, is_complete=True)


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [
        (["primary", "primary", "replica"], set()),
        (["replica"], set()),
        (["primary", "primary", "primary", "replica"], {"attempts"}),
        (["primary", "replica", "replica"], {"attempts"}),
    ],
)
def test_more_attempts_than_the_policy_allows_are_reported(targets: list[str], kinds: set[str]) -> None:
    found = verified(cell(), [result(WHOLE, cell())], [attempt(target) for target in targets])
    assert set(found.faults) == kinds


@pytest.mark.parametrize(("seconds", "kinds"), [(3.9, set()), (8.0, {"wait"})])
def test_a_replica_that_is_asked_late_is_reported(seconds: float, kinds: set[str]) -> None:
    at = cell("silent")
    attempts = [attempt(cell=at.name, began=10.0), attempt("replica", cell=at.name, began=10.0 + seconds)]
    assert set(verified(at, [result(WHOLE, at)], attempts).faults) == kinds


def test_attempts_of_other_cells_do_not_count() -> None:
    attempts = [attempt(cell="reset.chat.json") for _ in range(5)]
    assert verified(cell(), [result(WHOLE, cell())], attempts).faults == {}


@pytest.mark.parametrize(
    ("name", "api", "reply", "kinds"),
    [
        ("reset", "chat", Reply(text=HALF, error="server_error"), {"outcome"}),
        ("policy", "chat", Reply(error="content_policy_violation", status=400), set()),
        ("policy", "chat", Reply(error="server_error", status=502), {"outcome"}),
        ("policy", "messages", Reply(error="invalid_request_error", status=400), set()),
        ("policy", "messages", Reply(error="api_error", status=500), {"outcome"}),
        ("policy", "chat", WHOLE, {"outcome"}),
        ("prefix-refused", "chat", Reply(text=HALF, error="server_error"), set()),
        ("prefix-refused", "chat", Reply(text=HALF, is_complete=True), {"outcome"}),
    ],
)
def test_another_outcome_than_the_promised_one_is_reported(name: str, api: str, reply: Reply, kinds: set[str]) -> None:
    at = cell(name, api=api)
    assert set(verified(at, [result(reply, at)], []).faults) == kinds


def test_the_report_marks_the_lines_with_faults() -> None:
    held = verified(cell(), [result(WHOLE, cell())], [attempt()])
    missed = verified(cell("503"), [result(Reply(), cell("503"))], [])
    lines = list(report([held, missed]))
    assert [line.split()[:2] for line in lines if not line.startswith(" ")] == [["holds", "reset"], ["MISSED", "503"]]
    assert "1 whole; at most 1 + 0 attempts" in lines[0]
    assert "stream, outcome" in lines[-1]


# -- outages -----------------------------------------------------------------------------------------------------------

OUTAGE = Outage(began=100.0, ended=160.0)
_OPENING = [100.0, 100.5, 101.0, 101.5, 105.0]


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([*_OPENING, 112.0, 132.0, 152.0, 161.0], 0),
        ([*_OPENING, 112.0, 132.0, 152.0], 1),
        ([*_OPENING, 161.0 + RECOVERY_SECONDS], 1),
        ([*_OPENING, *range(111, 161), 161.0], 1),
    ],
    ids=["probes", "no return", "late return", "too many probes"],
)
def test_probes_of_a_dead_target_are_rare_and_find_its_return(times: list[float], count: int) -> None:
    attempts = [attempt(began=began) for began in times]
    assert len(list(outage_faults(OUTAGE, attempts))) == count


# -- usage records -----------------------------------------------------------------------------------------------------

Record = namedtuple(  # noqa: PYI024 - the columns are those of the query
    "Record",
    "id end_user endpoint outcome estimated upstream_request_id service_tier cost prices target "
    "input cached written output reasoning",
)


def record(sent: Attempt, **values: Any) -> Any:
    """Return the exact record of an attempt."""
    exact = Record(
        id=1,
        end_user=sent.run,
        endpoint="chat.completions",
        outcome="stop",
        estimated=False,
        upstream_request_id=sent.id,
        service_tier="default",
        cost=sent.cost,
        prices=[{"cost": str(sent.cost)}],
        target=f"{sent.cell}.{sent.target}",
        input=sent.input,
        cached=0,
        written=0,
        output=sent.output,
        reasoning=0,
    )
    return exact._replace(**values)


SENT = attempt("replica")
LOST = attempt(state="dropped")
ESTIMATE: dict[str, Any] = {"upstream_request_id": "", "estimated": True, "outcome": "failed"}


@pytest.mark.parametrize(
    ("attempts", "records"),
    [
        ([SENT], [record(SENT)]),
        ([LOST, SENT], [record(LOST, **ESTIMATE), record(SENT)]),
        ([SENT], [record(LOST, **ESTIMATE, input=0, output=0, cost=None), record(SENT)]),
        ([attempt(state="refused")], [record(attempt(), input=0, output=0, cost=None, prices=None)]),
        ([attempt(state="cut")], [record(attempt(), estimated=True, output=7)]),
    ],
    ids=["sent", "lost", "never received", "refused", "cut"],
)
def test_records_that_agree_with_the_attempts_have_no_faults(attempts: Sequence[Attempt], records: list[Any]) -> None:
    assert list(usage_faults(attempts, records)) == []


@pytest.mark.parametrize(
    ("attempts", "records"),
    [
        ([SENT], []),
        ([SENT], [record(SENT), record(SENT)]),
        ([SENT], [record(SENT, output=21)]),
        ([SENT], [record(SENT, cost=Decimal("0.0002"))]),
        ([SENT], [record(SENT, target="reset.chat.stream.primary")]),
        ([SENT], [record(SENT, end_user="another")]),
        ([], [record(SENT)]),
        ([LOST, SENT], [record(SENT)]),
        ([SENT], [record(SENT), record(LOST, **ESTIMATE)]),
        ([LOST], [record(LOST, **{**ESTIMATE, "estimated": False})]),
        ([attempt(state="refused")], [record(attempt())]),
    ],
    ids=[
        "missing", "doubled", "tokens", "cost", "other target", "other request", "unknown", "lost without estimate",
        "estimate without attempt", "invented tokens", "charged refusal",
    ],
)  # fmt: skip
def test_records_that_differ_from_the_attempts_are_reported(attempts: Sequence[Attempt], records: list[Any]) -> None:
    assert list(usage_faults(attempts, records))


# -- cases -------------------------------------------------------------------------------------------------------------


def test_every_fault_has_a_case_with_each_api_and_mode() -> None:
    every = list(cells(CASES))
    modes = {(row.case.fault, row.api, row.streamed) for row in every if row.api in APIS}
    assert modes == {(fault, api, streamed) for fault in Fault for api in APIS for streamed in (True, False)}
    assert {row.streamed for row in every if row.api == EMBEDDINGS} == {False}
    assert len({row.name for row in every}) == len(every)
