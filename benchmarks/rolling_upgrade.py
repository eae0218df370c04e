"""`python -m benchmarks rolling-upgrade --from REVISION`: two versions serve one database, as during an upgrade.

An older revision prepares the database and starts; this checkout migrates it and starts beside it. Objects that are
stored through the web process of one version are read, continued, followed, cancelled and deleted through the web
process of the other. At first workers of both versions run, then only workers of the old one, then only workers of the
new one. Runs that wait for approvals, which only the new version knows, must stay suspended beside workers of the old
one. Every difference is printed.
"""

import json
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from openai import NotFoundError, OpenAI

from benchmarks.effects.acting_server import ALWAYS, LABEL, ActingServer, application
from benchmarks.load import Target, program
from benchmarks.stack import is_up, running_servers, tell
from benchmarks.versions import Version, checked_out
from launcher import processes
from launcher.address import any_free_port
from tests.support.aiohttp_server import serving

_QUICK, _SLOW = "mock-t20-d1-f1", "mock-t200-d50-f1"
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.1
_LINES = 3
_ACTING = "acting"
_WAITING_RUNS = 6
# Workers look for runs once per second.
_POLLS_SECONDS = 3.0
# Only workers that know decisions store the time until which a run waits.
_SUSPENDED = "SELECT response_id FROM responses_approval WHERE expires_at IS NOT NULL AND response_id = ANY (%s)"


def differences(writer: OpenAI, reader: OpenAI) -> Iterator[str]:
    """Yield the differences in how the reader treats objects that the writer has stored."""
    stored = writer.responses.create(model=_QUICK, input="Hi")
    # A newer version may have further fields, which are null.
    own, others = (client.responses.retrieve(stored.id).to_dict() for client in (writer, reader))
    if fields := [name for name in {**own, **others} if own.get(name) != others.get(name)]:
        yield f"{', '.join(fields)} of a response"
    if reader.responses.create(model=_QUICK, input="Go on", previous_response_id=stored.id).status != "completed":
        yield "a chain"
    conversation = writer.conversations.create()
    for client in (writer, reader, writer):
        client.responses.create(model=_QUICK, input="Hi", conversation=conversation.id)
    pages = [client.conversations.items.list(conversation.id) for client in (writer, reader)]
    if pages[0].to_dict() != pages[1].to_dict() or len(pages[0].data) != 6:
        yield "a conversation"
    writer.responses.delete(stored.id)
    try:
        reader.responses.retrieve(stored.id)
        yield "a deleted response"
    except NotFoundError:
        pass
    yield from _background_differences(writer, reader)
    yield from _batch_differences(writer, reader)


def _background_differences(writer: OpenAI, reader: OpenAI) -> Iterator[str]:
    started = [writer.responses.create(model=_QUICK, input=f"Number {n}", background=True) for n in range(10)]
    for response in started:
        if _ended(reader, response.id) != "completed":
            yield "a background response"
    with writer.responses.create(model=_QUICK, input="Hi", background=True, stream=True) as events:
        first: Any = next(iter(events))
    followed = reader.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number)
    numbers, last = [], ""
    for event in followed:
        numbers.append(event.sequence_number)
        last = event.type
    if last != "response.completed" or numbers != [*range(1, len(numbers) + 1)]:
        yield "the events of a background response"
    slow = writer.responses.create(model=_SLOW, input="Hi", background=True)
    reader.responses.cancel(slow.id)
    if _ended(writer, slow.id) != "cancelled":
        yield "a cancelled response"


def _batch_differences(writer: OpenAI, reader: OpenAI) -> Iterator[str]:
    body = {"method": "POST", "url": "/v1/responses", "body": {"model": _QUICK, "input": "Hi"}}
    lines = "\n".join(json.dumps({"custom_id": str(number), **body}) for number in range(_LINES))
    file = writer.files.create(file=("batch.jsonl", lines.encode()), purpose="batch")
    batch = writer.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    for _ in _polls():
        batch = reader.batches.retrieve(batch.id)
        if batch.status in {"completed", "failed", "expired"}:
            break
    if batch.request_counts is None or batch.request_counts.completed != _LINES:
        yield "a batch"


def waiting_differences(client: OpenAI, tools: ActingServer, *, url: str, admin: str, name: str) -> Iterator[str]:
    """Yield the differences in runs that wait for approvals.

    A worker of an older version completes a run with its approval request. It must not do so with a suspended one.
    """
    runs = {_waiting_run(client, tools, url, f"{name}-{number}"): f"{name}-{number}" for number in range(_WAITING_RUNS)}
    requests = {response_id: _approval_request(client, response_id) for response_id in runs}
    time.sleep(_POLLS_SECONDS)
    with psycopg.connect(admin) as connection:
        suspended = [response_id for (response_id,) in connection.execute(_SUSPENDED, [[*runs]]).fetchall()]
    for response_id in suspended:
        if client.responses.retrieve(response_id).status != "in_progress":
            yield "a run that no longer waits for its approval"
            continue
        path = f"/responses/{response_id}/approvals/{requests[response_id]}"
        client.post(path, body={"approve": True}, cast_to=object)
        if _ended(client, response_id) != "completed" or tools.effects[runs[response_id]] != 1:
            yield "an approved run"
    for response_id in runs.keys() - suspended:
        if _ended(client, response_id) != "completed" or tools.effects[runs[response_id]] != 0:
            yield "a run that a worker without approvals has completed"


def _waiting_run(client: OpenAI, tools: ActingServer, url: str, name: str) -> str:
    """Create a run that waits for the approval of its call, and return its id."""
    tools.release(name)
    tool: Any = {"type": "mcp", "server_label": LABEL, "server_url": url, "require_approval": "always"}
    waits = {"background_options": {"wait_for_approval": True}}
    text = f"{name} {ALWAYS}"
    return client.responses.create(model=_ACTING, input=text, background=True, tools=[tool], extra_body=waits).id


def _approval_request(client: OpenAI, response_id: str) -> str:
    """Wait for the approval request of a run, and return its id."""
    for _ in _polls():
        for item in client.responses.retrieve(response_id).output:
            if item.type == "mcp_approval_request":
                return item.id
    return ""


def _ended(client: OpenAI, response_id: str) -> str:
    """Wait until a response has ended and return its status."""
    status = ""
    for _ in _polls():
        status = str(client.responses.retrieve(response_id).status)
        if status not in {"queued", "in_progress"}:
            break
    return status


def _polls() -> Iterator[None]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_SECONDS)


def _client(target: Target, key: str) -> OpenAI:
    return OpenAI(base_url=f"{target.url}/v1", api_key=key, max_retries=0, timeout=_PATIENCE_SECONDS)


def measured(revision: str, *, directory: Path) -> list[str]:
    """Return the differences, each with the versions of the workers, the writer and the reader."""
    directory.mkdir(parents=True)
    found, tools = [], ActingServer()
    with checked_out(revision, directory / "old") as old, serving(application(tools)) as acting:
        new = Version("new")
        with running_servers(directory / "servers", programs=old) as servers:
            port = any_free_port()
            url = f"http://127.0.0.1:{port}"
            servers.start("mock", str(program("mock")), "--port", str(port), is_ready=partial(is_up, f"{url}/health"))
            servers.environment |= {"EGRESS_ALLOW": "127.0.0.1"}
            key = servers.route(url)
            servers.manage("add_upstream", "--name", _ACTING, "--base-url", acting, "--models", _ACTING, "--json")
            clients = {old.name: _client(old.start_web(servers, key), key)}
            new.manage(servers.environment, "migrate")
            clients[new.name] = _client(new.start_web(servers, key), key)
            for versions in ([old, new], [old], [new]):
                workers = [version.start_worker(servers) for version in versions]
                names = " and ".join(version.name for version in versions)
                for writer, reader in (("old", "new"), ("new", "old")):
                    tell(f"workers: {names}; written by {writer}, read by {reader}")
                    for difference in differences(clients[writer], clients[reader]):
                        found.append(f"{difference} (workers: {names}; written by {writer}, read by {reader})")
                address = f"{acting.removesuffix('/v1')}/mcp"
                run = names.replace(" ", "-")
                tell(f"workers: {names}; runs that wait for approvals")
                for difference in waiting_differences(
                    clients[new.name], tools, url=address, admin=servers.admin, name=run
                ):
                    found.append(f"{difference} (workers: {names})")
                for worker in workers:
                    processes.end(worker.process, asking=signal.SIGTERM, patience=30.0)
    return found


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Print the differences and return 1 if there are any."""
    parser = ArgumentParser(prog="python -m benchmarks rolling-upgrade", description=__doc__)
    parser.add_argument("--from", dest="revision", required=True, help="commit or tag of the older version")
    options = parser.parse_args(arguments)
    found = measured(options.revision, directory=directory)
    print("\n".join(found) or "Both versions answer alike, with the workers of either.")
    return int(bool(found))
