"""The page of model routes: targets in order, their requests and errors, and draining."""

import html
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from django.test import Client

from tenants import scope
from tenants.models import AuditEvent, Model, Upstream
from tenants.prices import PriceList
from tests.admin.conftest import CountQueries
from tests.admin.rows import text
from tests.support.api import Api, Caller, MakeCaller, ok
from tests.support.chunks import text as chunks
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import Gate, refusal, stream
from tests.support.waiting import eventually
from tests.support.web import running_web

PAGE = "/admin/routes/"


def section(client: Client, name: str) -> str:
    """Return the text of a model on the page, without tags."""
    sections = [part for part in text(client.get(PAGE)).split("<section") if f">{name}</h2>" in part]
    return " ".join(re.sub(r"<[^>]+>", " ", " ".join(sections)).split())


def row_of(targets: Targets, number: int) -> Model:
    """Return the row of a target."""
    return Model.objects.get(upstream__name=f"up-{targets.scripts[number].model}")


def events(row: Model) -> list[tuple[str, object, object]]:
    """Return the audit lines about the weight of a target: action, weight before, weight after."""
    with scope.every_team():
        found = AuditEvent.objects.filter(target=str(row.pk), action__startswith="model.").order_by("pk")
        return [(event.action, event.before["weight"], event.after["weight"]) for event in found]


def test_only_operators_open_the_page(
    admin: Client, operator: Client, platform_auditor: Client, lead: Client, targets: Targets
) -> None:
    targets.two()
    drain = f"{PAGE}{row_of(targets, 0).pk}/drain/"
    for url in (PAGE, f"{PAGE}now/"):
        assert [client.get(url).status_code for client in (admin, operator)] == [200, 200], url
        assert [client.get(url).status_code for client in (platform_auditor, lead)] == [403, 403], url
    assert [client.post(drain).status_code for client in (platform_auditor, lead)] == [403, 403]
    assert row_of(targets, 0).weight == 1
    found = [text(client.get("/admin/search/", {"s": "model routes"})) for client in (operator, lead)]
    assert [PAGE in results for results in found] == [True, False]


def test_groups_are_listed_in_order(operator: Client, targets: Targets) -> None:
    late, early = targets.add(priority=1), targets.add(priority=0, weight=3)
    fallback = targets.add(name=f"{targets.name}-small", fallback_for=targets.name)
    page = section(operator, targets.name)
    found = [page.index(words) for words in ("1. Priority 0", f"up-{early.model}", "2. Priority 1", f"up-{late.model}")]
    found += [page.index(words) for words in ("3. Fallback model", f"up-{fallback.model}")]
    assert found == sorted(found)


def test_a_model_with_one_target_is_left_out(operator: Client, targets: Targets) -> None:
    targets.add()
    assert section(operator, targets.name) == ""


@pytest.mark.parametrize("path", PATHS)
def test_requests_and_errors_of_each_target_are_shown(operator: Client, api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(refusal(401, "Wrong key."))
    second.say("Hello")
    ok(post(api, path, targets.name))
    page = section(operator, targets.name)
    mine, other = page.split(f"up-{second.model}", 1)
    assert (" 1 100 % " in mine, " 1 0 % " in other) == (True, True), page
    assert "HTTP 401" in mine


@pytest.mark.parametrize("path", PATHS)
def test_failed_connections_are_counted(operator: Client, api: Api, targets: Targets, path: str) -> None:
    targets.unreachable()
    targets.add().say("Hello")
    ok(post(api, path, targets.name))
    page = section(operator, targets.name)
    assert " 2 100 % " in page, page
    assert "not reached" in page


def test_spend_and_medians_are_shown(operator: Client, api: Api, targets: Targets) -> None:
    first, second = (targets.add(prices=PriceList.simple(input="1000", output="2000")) for _ in range(2))
    first.say("Hello")
    api.events(model=targets.name, input="Hi")
    mine, other = section(operator, targets.name).split(f"up-{second.model}", 1)
    # 7 tokens of input and 3 of output.
    assert "$0.013 Drain" in mine
    assert re.search(r" 1 0 % \d+ ms \d+ ms ", mine), mine
    assert " 0 – – – – Drain" in other


def test_the_error_of_a_failed_response_is_shown(operator: Client, api: Api, targets: Targets) -> None:
    for script in targets.two():
        script.then(refusal(401, "Wrong key."))
    post(api, "/responses", targets.name)
    page = section(operator, targets.name)
    last = page.split(f"up-{targets.scripts[1].model}", 1)[1]
    assert " 1 100 % " in last, page
    assert "resp_" in last


def test_a_drained_target_gets_no_requests_until_it_is_resumed(operator: Client, api: Api, targets: Targets) -> None:
    first, second = targets.add(weight=3), targets.add()
    row = row_of(targets, 0)
    operator.post(f"{PAGE}{row.pk}/drain/")
    assert "drained" in section(operator, targets.name)
    second.say("Hello")
    api.create(model=targets.name, input="Hi")
    assert (len(first.received), len(second.received)) == (0, 1)
    operator.post(f"{PAGE}{row.pk}/drain/")
    operator.post(f"{PAGE}{row.pk}/resume/")
    operator.post(f"{PAGE}{row.pk}/resume/")
    assert row_of(targets, 0).weight == 3
    assert events(row) == [("model.drained", 3, 0), ("model.resumed", 0, 3)]


def test_a_target_without_an_earlier_weight_is_resumed_with_one(operator: Client, targets: Targets) -> None:
    targets.two(weight=0)
    operator.post(f"{PAGE}{row_of(targets, 0).pk}/resume/")
    assert (row_of(targets, 0).weight, row_of(targets, 1).weight) == (1, 0)


def test_a_target_that_does_not_exist_is_not_found(operator: Client) -> None:
    assert operator.post(f"{PAGE}2000000000/drain/").status_code == 404
    assert operator.post(f"{PAGE}2000000000/resume/").status_code == 404


def test_the_number_of_queries_does_not_grow_with_targets(
    operator: Client, targets: Targets, count_queries: CountQueries
) -> None:
    targets.two()
    before = count_queries(operator, f"{PAGE}now/")
    targets.two()
    targets.add(name=f"{targets.name}-small", fallback_for=targets.name)
    assert count_queries(operator, f"{PAGE}now/") == before


def test_a_target_that_gets_no_requests_says_why(operator: Client, api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(refusal(401, "Wrong key."))
    second.say("Hello")
    ok(post(api, "/responses", targets.name))
    eventually(lambda: "No requests, " in section(operator, targets.name))
    mine, other = section(operator, targets.name).split(f"up-{second.model}", 1)
    assert ("credentials" in mine, "No requests" in other) == (True, False)


def in_flight(client: Client, targets: Targets) -> list[str]:
    """Return the requests in flight to each target, as the page shows them."""
    page = text(client.get(PAGE))
    part = page.split(f">{targets.name}</h2>", 1)[1].split("</section>")[0]
    return re.findall(r'data-label="In flight">([^<]*)<', part)


def test_requests_in_flight_are_those_of_all_processes(
    operator: Client, api: Api, reaching: Api, targets: Targets
) -> None:
    first, gates = targets.add(), [Gate(), Gate()]
    targets.add()
    first.then(*(stream(*chunks("Hel"), gate, *chunks("lo")) for gate in gates))
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(post, client, "/chat/completions", targets.name) for client in (api, reaching)]
        eventually(lambda: in_flight(operator, targets) == ["2", "0"])
        for gate in gates:
            gate.open()
        for answer in running:
            ok(answer.result())
    eventually(lambda: in_flight(operator, targets) == ["0", "0"])


@pytest.mark.slow
def test_requests_in_flight_of_a_dead_process_are_forgotten(
    operator: Client, http: httpx2.Client, caller: Caller, targets: Targets
) -> None:
    first, gate = targets.add(), Gate()
    targets.add()
    first.then(stream(gate))
    with running_web() as web, ThreadPoolExecutor(1) as threads:
        running = threads.submit(post, Api(http, url=web.url, caller=caller), "/chat/completions", targets.name)
        eventually(lambda: in_flight(operator, targets) == ["1", "0"])
        web.stop(signal.SIGKILL)
        assert running.exception() is not None
        eventually(lambda: in_flight(operator, targets) == ["0", "0"])
    gate.open()


def test_limits_restrictions_and_regions_are_shown(operator: Client, targets: Targets, make_caller: MakeCaller) -> None:
    key = make_caller().key
    targets.add(requests_per_minute=1200, concurrent_requests=4, keys=[key], only_metadata={"tier": "<gold>"})
    targets.add()
    row = row_of(targets, 0)
    Upstream.objects.filter(pk=row.upstream_id).update(region="Helsinki <1>")
    shown = html.unescape(section(operator, targets.name))
    assert f"Helsinki <1> only for {key}" in shown
    assert 'only with metadata {"tier": "<gold>"} at most 1,200 requests per minute, 4 requests at once' in shown
    assert shown.count("at most") == 1
