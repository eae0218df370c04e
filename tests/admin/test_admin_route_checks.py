"""Test of a route as edited: each check of each target, with the words of the server."""

import asyncio
import html
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from django.test import Client

from routing.target_test import check_targets
from routing.upstream_check import run_sync
from tenants import directory, scope
from tenants.models import AuditEvent, Model
from tenants.prices import PriceList
from tests.admin.rows import text
from tests.support.aiohttp_server import serving
from tests.support.chunks import calls
from tests.support.chunks import text as text_chunks
from tests.support.html_forms import form_values
from tests.support.targets import REFUSING_URL, Targets, upstream_id
from tests.support.upstream import Script, stream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PASSED = {"Connection": "passed", "Model listed": "passed", "Price": "passed", "Tools": "passed", "Streaming": "passed"}


def answered(targets: Targets, client: Client, action: str = "test", **values: str) -> str:
    """Submit the form of a route with a button and return the page."""
    url = f"/admin/routes/edit/?model={targets.name}"
    filled = form_values(text(client.get(url)), "route-form") | {name: [value] for name, value in values.items()}
    return text(client.post(url, {**filled, "action": action}))


def checks(page: str) -> list[dict[str, tuple[str, str]]]:
    """Return result and text of the checks of each target by name."""
    found = []
    for part in page.split('<ul class="c-route-checks"')[1:]:
        rows = re.findall(r"<li[^>]*>(.*?)</li>", part.split("</ul>")[0], re.DOTALL)
        cells = [re.findall(r"<(?:b|span)[^>]*>(.*?)</(?:b|span)>", row, re.DOTALL) for row in rows]
        found.append({name: (result.split(" in ")[0], "".join(words)) for name, result, *words in cells})
    return found


def results(page: str) -> list[dict[str, str]]:
    """Return the results of the checks of each target."""
    return [{name: result for name, (result, _) in target.items()} for target in checks(page)]


def document(pieces: Any, *, status: int = 200) -> Handler:
    """Return a handler that answers with JSON, or with a text."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = pieces if isinstance(pieces, str) else orjson.dumps(pieces).decode()
        return web.Response(status=status, text=body, content_type="application/json")

    return answer


def events(*chunks: dict[str, Any]) -> Handler:
    """Return a handler that answers with a stream."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(b"data: %b\n\n" % orjson.dumps(chunk))
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


async def silence(_: web.Request) -> web.StreamResponse:
    """Answer nothing."""
    await asyncio.sleep(60)
    return web.Response()


def error(message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": "server_error"}}


CALLED = {"id": "c", "choices": [{"index": 0, "message": {"tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"}]}


@contextmanager
def server(models: Handler, tools: Handler, streaming: Handler) -> Iterator[str]:
    """Run a server with these answers to the checks of a target."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        return await (streaming if body["stream"] else tools)(request)

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", complete)])
    with serving(app) as url:
        yield url


def listed(script: Script) -> Handler:
    """Return a handler that lists the model of a target."""
    return document({"data": [{"id": script.model}]})


def test_a_working_target_passes_all_checks(operator: Client, targets: Targets) -> None:
    script = targets.add(prices=PriceList.simple(input="1", output="2"))
    with server(listed(script), document(CALLED), events(*text_chunks("Hello"))) as url:
        move_to(url, script)
        page = answered(targets, operator)
    [found] = checks(page)
    assert "Test: 1 of 1 targets passed all checks." in page
    assert {name: result for name, (result, _) in found.items()} == PASSED
    assert found["Connection"][1] == "1 model listed"
    assert re.fullmatch(r"\d+ events, the first after \d+ ms", found["Streaming"][1])


def move_to(url: str, script: Script) -> None:
    """Give a target another server."""
    server_row = Model.objects.get(upstream_id=upstream_id(script)).upstream
    server_row.base_url, server_row.api_key = url, "sk-secret-key-of-the-server"
    server_row.save()


def test_a_refused_connection_is_shown_for_each_request(operator: Client, targets: Targets) -> None:
    targets.unreachable()
    [found] = checks(answered(targets, operator))
    assert [found[name][0] for name in ("Connection", "Model listed", "Tools", "Streaming")] == [
        "failed", "skipped", "failed", "failed",
    ]  # fmt: skip
    assert all(found[name][1] for name in ("Connection", "Tools", "Streaming"))
    assert "hard budgets" in found["Price"][1]


@pytest.mark.parametrize(
    ("part", "handler", "name", "message"),
    [
        (0, document(error("Nope."), status=401), "Connection", "HTTP 401: Nope."),
        (0, document({"models": []}), "Connection", "The upstream did not return a list of models."),
        (0, document({"data": [{"id": "other"}]}), "Model listed", "is not among the listed models."),
        (1, document(error("No parser for tools."), status=400), "Tools", "HTTP 400: No parser for tools."),
        (1, document("<html>Bad gateway</html>", status=502), "Tools", "HTTP 502"),
        (
            1,
            document({"id": "c", "choices": [{"index": 0, "message": {"content": "5"}, "finish_reason": "stop"}]}),
            "Tools",
            "The model has answered without calling the tool.",
        ),
        (2, document(error("Out of memory."), status=500), "Streaming", "HTTP 500: Out of memory."),
        (
            2,
            document({"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}}]}),
            "Streaming",
            "The server has answered with one document instead of a stream.",
        ),
        (2, events(), "Streaming", "The stream has ended without an event."),
        (2, events(error("The engine has died.")), "Streaming", "The engine has died."),
        (2, document(error("<b>bold</b>"), status=400), "Streaming", "HTTP 400: <b>bold</b>"),
        (1, document(error("Wrong: sk-secret-key-of-the-server"), status=401), "Tools", "HTTP 401: Wrong: [redacted]"),
    ],
)
def test_a_failed_check_shows_the_words_of_the_server(
    operator: Client, targets: Targets, part: int, handler: Handler, name: str, message: str
) -> None:
    script = targets.add(prices=PriceList.simple(input="1", output="2"))
    handlers = [listed(script), document(CALLED), events(*text_chunks("Hello"))]
    handlers[part] = handler
    with server(*handlers) as url:
        move_to(url, script)
        page = answered(targets, operator)
    [found] = checks(page)
    failed = {check: html.unescape(words) for check, (result, words) in found.items() if result == "failed"}
    assert [*failed] == [name]
    assert message in failed[name]
    assert ("<b>bold" in page, "sk-secret" in page) == (False, False)


def test_a_silent_server_is_given_up_after_the_limit(targets: Targets) -> None:
    silent, working = targets.two(prices=PriceList.simple(input="1", output="2"))
    with (
        server(listed(silent), document(CALLED), silence) as first,
        server(listed(working), document(CALLED), events(*text_chunks("Hello"))) as second,
    ):
        move_to(first, silent)
        move_to(second, working)
        rows = Model.objects.filter(name=targets.name).order_by("priority")
        routes = [directory.route_of(row, row.name) for row in rows.select_related("upstream")]
        found = run_sync(check_targets(routes, seconds=0.5))
    assert [{check.name: check.result for check in target} for target in found] == [
        PASSED | {"Streaming": "failed"}, PASSED,
    ]  # fmt: skip
    assert found[0][-1].text == "No answer within 0.5 s."


def test_a_target_for_any_name_is_tested_without_calls(targets: Targets) -> None:
    script = targets.add()
    with server(listed(script), silence, silence) as url:
        move_to(url, script)
        row = Model.objects.select_related("upstream").get(name=targets.name)
        [found] = run_sync(check_targets([replace(directory.route_of(row, row.name), upstream_model="*")]))
    assert [(check.name, check.result) for check in found] == [("Connection", "passed"), ("Model", "skipped")]


def test_unsaved_values_are_tested_and_nothing_is_stored(operator: Client, targets: Targets) -> None:
    script = targets.add()
    script.always(stream(*calls(add_numbers="{}")))
    row = Model.objects.get(upstream_id=upstream_id(script))
    Model.objects.filter(pk=row.pk).update(upstream_model="not-this-one")
    page = answered(targets, operator, **{f"{row.upstream_id}-upstream_model": script.model})
    assert (results(page)[0]["Tools"], results(page)[0]["Streaming"]) == ("passed", "passed")
    assert {body["stream"] for body in script.bodies} == {True, False}
    row.refresh_from_db()
    assert row.upstream_model == "not-this-one"
    with scope.every_team():
        line = AuditEvent.objects.get(action="route.tested", target=targets.name)
    assert line.after["upstreams"] == [row.upstream_id]


def test_a_new_target_is_tested_before_it_is_saved(operator: Client, targets: Targets) -> None:
    script = targets.add(name=f"{targets.name}-elsewhere")
    targets.add(base_url=REFUSING_URL)
    script.always(stream(*calls(add_numbers="{}")))
    url = f"/admin/routes/edit/?model={targets.name}"
    added = {"action": "add", "add_upstream": upstream_id(script), "add_model": script.model}
    page = text(operator.post(url, {**form_values(text(operator.get(url)), "route-form"), **added}))
    page = text(operator.post(url, {**form_values(page, "route-form"), "action": "test"}))
    assert [found["Streaming"] for found in results(page)] == ["failed", "passed"]
    assert Model.objects.filter(name=targets.name).count() == 1


@pytest.mark.parametrize(("item", "result"), [("function_call", "passed"), ("message", "failed")])
def test_a_target_of_the_responses_api_is_tested_with_it(
    operator: Client, targets: Targets, item: str, result: str
) -> None:
    body = {"id": "resp_1", "object": "response", "status": "completed", "output": [{"type": item}]}

    async def respond(request: web.Request) -> web.StreamResponse:
        is_stream = orjson.loads(await request.read())["stream"]
        handler = events({"type": "response.completed", "response": body}) if is_stream else document(body)
        return await handler(request)

    script, app = targets.add(wire_api="responses"), web.Application()
    app.add_routes([web.post("/v1/responses", respond)])
    with serving(app) as url:
        move_to(url, script)
        [found] = results(answered(targets, operator))
    assert (found["Tools"], found["Streaming"]) == (result, "passed")
