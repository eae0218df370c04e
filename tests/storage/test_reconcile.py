"""`manage.py reconcile`: differences between records, sums, responses, prices and invoices, and their explanations."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from responses.models import Status
from responses.models.rollups import CallHour
from responses.rollups import aggregate
from tenants import scope
from tests.admin.rows import add_response, add_usage
from tests.support.api import Caller

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rollups")]
DAY = datetime(2026, 9, 14, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
EXACT = {"input_tokens": 1000, "cached_tokens": 200, "output_tokens": 100, "cost": Decimal("0.0018")}
PRICES = [
    {"dimension": "input", "amount": "1", "cost": "0.001"},
    {"dimension": "output", "amount": "8", "cost": "0.0008"},
]
HEAD = "date,model,requests,input_tokens,cached_tokens,output_tokens,cost\n"


def reconciled(caller: Caller, *options: str, exits: int = 0) -> dict[str, Any]:
    """Run the command for the caller's team and the day, and return its output."""
    out, code = StringIO(), 0
    until = f"{DAY + timedelta(days=1):%Y-%m-%d}"
    arguments = ["--team", caller.team.pk, "--since", f"{DAY:%Y-%m-%d}", "--until", until, "--json", *options]
    try:
        call_command("reconcile", *arguments, stdout=out)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == exits, out.getvalue()
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def explanations(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["explanation"] for each in found["differences"]}


def add(caller: Caller, **columns: Any) -> None:
    """Create a record at noon of the day for an upstream's model `gpt`."""
    values = {"occurred_at": NOON, "upstream_model": "gpt", "prices": PRICES, **EXACT, **columns}
    add_usage(caller, **values)


def csv_file(directory: Path, *lines: str) -> str:
    path = directory / "invoice.csv"
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines))
    return str(path)


def test_records_that_agree_with_the_invoice_have_no_differences(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    add(caller)
    path = csv_file(tmp_path, "2026-09-14,gpt-2026-01-01,2,2000,400,200,$0.0036")
    found = reconciled(caller, "--invoice", path)
    assert (found["differences"], found["facts"]["records"], found["compared"]["invoice lines"]) == ([], 2, 1)


def test_tokens_without_records_are_unexplained(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1001,200,100,0.0018"), exits=1)
    (difference,) = found["differences"]
    assert (difference["name"], difference["records"], difference["other"]) == ("input_tokens", "1000", "1001")
    assert (difference["explanation"], found["unexplained"]) == ("", 1)


def test_calls_with_estimated_usage_explain_other_tokens(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    add(caller, input_tokens=40, cached_tokens=0, output_tokens=0, cost=Decimal("0.00004"), prices=None, estimated=True)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,2,1700,200,150,0.003"))
    assert set(explanations(found).values()) == {"1 calls with estimated usage"}


def test_estimates_do_not_explain_missing_exact_usage(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    add(caller, input_tokens=40, cached_tokens=0, output_tokens=0, cost=Decimal("0.00004"), prices=None, estimated=True)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,2,900,200,100,0.0018"), exits=1)
    assert explanations(found)["input_tokens"] == ""


def test_rejected_requests_may_be_missing_in_the_invoice(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    add(caller, input_tokens=0, cached_tokens=0, output_tokens=0, cost=Decimal(0), prices=None, outcome="failed")
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1000,200,100,0.0018"))
    assert explanations(found)["requests"].startswith("1 refused")


def test_a_call_over_midnight_counts_on_the_day_it_began(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    add(caller, occurred_at=DAY + timedelta(seconds=2), duration_ms=5000)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1000,200,100,0.0018"))
    assert set(explanations(found).values()) == {"calls that began and ended on different days"}


def test_an_invoice_in_cents_is_rounded(caller: Caller, tmp_path: Path) -> None:
    add(caller, cost=Decimal("1.2345678901"), prices=None)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1000,200,100,1.23"))
    assert explanations(found) == {"cost": "rounded in the invoice"}


def test_another_price_is_unexplained(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1000,200,100,0.0036"), exits=1)
    assert explanations(found) == {"cost": ""}


def test_calls_without_a_price_explain_a_cost(caller: Caller, tmp_path: Path) -> None:
    add(caller, cost=None, prices=None)
    found = reconciled(caller, "--invoice", csv_file(tmp_path, "2026-09-14,gpt,1,1000,200,100,0.0018"))
    assert explanations(found) == {"cost": "1 calls without a price"}
    assert found["facts"]["without_price"] == 1


def test_a_model_without_records_is_unexplained_unless_it_is_of_another_client(caller: Caller, tmp_path: Path) -> None:
    add(caller)
    usage = {"input_tokens": 1000, "input_cached_tokens": 200, "output_tokens": 100, "num_model_requests": 1}
    results = [{**usage, "model": "gpt", "api_key_id": "key_ours"}, {**usage, "model": "x", "api_key_id": "key_theirs"}]
    page = {"object": "page", "data": [{"start_time": int(DAY.timestamp()), "results": results}]}
    path = tmp_path / "usage.json"
    path.write_text(json.dumps(page))
    assert reconciled(caller, "--openai-usage", str(path), exits=1)["unexplained"] == 4
    found = reconciled(caller, "--openai-usage", str(path), "--client", "key_ours")
    assert found["differences"] == []
    assert found["facts"]["invoice lines of other clients"] == 1


def test_an_invoice_with_request_ids_is_compared_request_by_request(caller: Caller, tmp_path: Path) -> None:
    add(caller, upstream_request_id="req_1")
    add(caller, upstream_request_id="req_2", estimated=True, input_tokens=5)
    add(caller, upstream_request_id="req_3")
    path = tmp_path / "requests.csv"
    path.write_text(
        "date,model,request_id,input_tokens\n"
        "2026-09-14,gpt,req_1,1000\n2026-09-14,gpt,req_2,7\n2026-09-14,gpt,req_4,9\n"
    )
    found = reconciled(caller, "--invoice", str(path), exits=1)
    kinds = {each["subject"].split(" ")[0]: each["explanation"][:9] for each in found["differences"]}
    assert kinds == {"req_2": "estimated", "req_4": "", "req_3": ""}


def test_a_response_must_show_the_sum_of_its_records(caller: Caller) -> None:
    tokens = {"input_tokens": 1000, "cached_tokens": 200, "output_tokens": 100}
    good = add_response(caller, created_at=NOON, cost=Decimal("0.0018"), **tokens)
    bad = add_response(caller, created_at=NOON, cost=Decimal("0.0018"), **{**tokens, "output_tokens": 90})
    running = add_response(caller, created_at=NOON, status=Status.IN_PROGRESS, ended_at=None, completed_at=None)
    for response in (good, bad, running):
        add(caller, object_id=response.pk)
    found = [each for each in reconciled(caller, exits=1)["differences"] if each["part"] == "responses"]
    assert [each["subject"] for each in found if not each["explanation"]] == [bad.pk]
    assert {each["subject"] for each in found if "in progress" in each["explanation"]} == {running.pk}


def test_a_cost_is_the_rounded_sum_of_its_price_entries(caller: Caller) -> None:
    add(caller, cost=Decimal("0.0018"), prices=[{"cost": "0.00180000004"}])
    add(caller, cost=Decimal("0.0019"))
    found = [each for each in reconciled(caller, exits=1)["differences"] if each["part"] == "prices"]
    assert sorted(each["explanation"] for each in found) == ["", "rounded to ten decimal places"]


def test_sums_are_compared_by_hour(rollups: None, caller: Caller) -> None:
    add(caller)
    aggregate.roll_up(seconds=100)
    assert reconciled(caller)["differences"] == []
    with scope.team(caller.team.pk):
        CallHour.objects.filter(team=caller.team).update(input_tokens=1)
    found = reconciled(caller, exits=1)
    assert {(each["part"], each["name"], each["other"]) for each in found["differences"]} == {
        ("sums", "input_tokens", "1")
    }


@pytest.mark.parametrize("content", ["date,model\nyesterday,gpt\n", "date,model,cost\n2026-09-14,gpt,much\n"])
def test_a_file_that_is_not_an_invoice_is_an_error(caller: Caller, tmp_path: Path, content: str) -> None:
    path = tmp_path / "invoice.csv"
    path.write_text(content)
    with pytest.raises(CommandError, match="Line 2 cannot be read"):
        reconciled(caller, "--invoice", str(path))


def test_an_unknown_team_is_an_error() -> None:
    with pytest.raises(CommandError, match="no team"):
        call_command("reconcile", "--team", "nobody")
