"""Example requests of the API reference, by operation: the source of its samples in Python and curl.

A name in braces stands for an id that an earlier answer has given (`gives`). tests/docs/test_api_reference.py sends
them in this order and compares the answers with those in examples/.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An example request. A value of `form` that begins with `@` is a file.

    `gives` has the path of each id in the answer, such as `data.0.id`. With `streams`, the events of the same request
    with `stream` are shown, too.
    """

    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, str] | None = None
    gives: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False
    guide: str = ""


FILES = {
    "notes.txt": b"The kettle is descaled with vinegar.\n",
    "requests.jsonl": b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", '
    b'"body": {"model": "demo", "input": "What is 12*7?"}}\n',
    "part.txt": b"The kettle is descaled with vinegar.\n",
    "photo.png": b"\x89PNG\r\n\x1a\nphoto",
    "talk.wav": b"RIFF\x24\0\0\0WAVEfmt " + bytes(30),
    "greetings/SKILL.md": b'---\nname: greetings\ndescription: How to greet customers.\n---\n\nSay "Good day".\n',
}
"""Contents of the files that samples upload."""
_TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_MESSAGES = [{"role": "user", "content": "What is 12*7?"}]


def _gives(name: str, path: str = "id") -> dict[str, str]:
    return {name: path}


SAMPLES: Mapping[str, Sample] = {
    "responses.create": Sample(
        body={"model": "demo", "input": "What is 12*7?"}, gives=_gives("response_id"), streams=True
    ),
    "responses.retrieve": Sample(),
    "responses.list": Sample(query={"limit": 1}),
    "responses.input_items.list": Sample(),
    "responses.attempts.list": Sample(),
    "responses.timeline": Sample(),
    "responses.input_tokens.count": Sample(body={"model": "demo", "input": "What is 12*7?", "tools": [_TOOL]}),
    "responses.compact": Sample(
        body={"model": "demo", "input": [{"role": "user", "content": "My name is Ada. What is 12*7?"}]}
    ),
    "responses.approvals.decide": Sample(
        body={"approve": True, "reason": "The note is outdated."},
        guide="../../howto/mcp.md#let-a-background-response-wait",
    ),
    "responses.cancel": Sample(),
    "responses.delete": Sample(),
    "conversations.create": Sample(
        body={"items": [{"role": "user", "content": "My name is Ada."}], "metadata": {"topic": "names"}},
        gives=_gives("conversation_id"),
    ),
    "conversations.list": Sample(query={"limit": 1}),
    "conversations.retrieve": Sample(),
    "conversations.update": Sample(body={"metadata": {"topic": "people"}}),
    "conversations.items.create": Sample(
        body={"items": [{"role": "user", "content": "I live in Oslo."}]}, gives=_gives("item_id", "data.0.id")
    ),
    "conversations.items.list": Sample(query={"limit": 2}),
    "conversations.items.retrieve": Sample(),
    "conversations.fork": Sample(body={"after": "{item_id}"}),
    "conversations.export": Sample(),
    "conversations.cancel": Sample(),
    "conversations.items.delete": Sample(),
    "conversations.delete": Sample(),
    "chat.completions.create": Sample(
        body={"model": "demo", "messages": _MESSAGES, "store": True}, gives=_gives("completion_id"), streams=True
    ),
    "chat.completions.list": Sample(query={"limit": 1}),
    "chat.completions.retrieve": Sample(),
    "chat.completions.update": Sample(body={"metadata": {"topic": "sums"}}),
    "chat.completions.messages.list": Sample(),
    "chat.completions.delete": Sample(),
    "messages.create": Sample(body={"model": "demo", "max_tokens": 100, "messages": _MESSAGES}, streams=True),
    "messages.count_tokens": Sample(body={"model": "demo", "messages": _MESSAGES}),
    "models.list": Sample(),
    "models.retrieve": Sample(),
    "files.create": Sample(form={"purpose": "user_data", "file": "@notes.txt"}, gives=_gives("file_id")),
    "files.list": Sample(query={"limit": 1}),
    "files.retrieve": Sample(),
    "files.content": Sample(),
    "uploads.create": Sample(
        body={"filename": "notes.txt", "purpose": "user_data", "bytes": 37, "mime_type": "text/plain"},
        gives=_gives("upload_id"),
    ),
    "uploads.parts.create": Sample(form={"data": "@part.txt"}, gives=_gives("part_id")),
    "uploads.complete": Sample(body={"part_ids": ["{part_id}"]}),
    "uploads.cancel": Sample(),
    "vector_stores.create": Sample(body={"name": "Manuals"}, gives=_gives("vector_store_id")),
    "vector_stores.list": Sample(query={"limit": 1}),
    "vector_stores.retrieve": Sample(),
    "vector_stores.update": Sample(body={"name": "Manuals of kettles"}),
    "vector_stores.files.create": Sample(body={"file_id": "{file_id}", "attributes": {"year": 2026}}),
    "vector_stores.files.list": Sample(),
    "vector_stores.files.retrieve": Sample(),
    "vector_stores.files.update": Sample(body={"attributes": {"year": 2027}}),
    "vector_stores.files.content": Sample(),
    "vector_stores.search": Sample(body={"query": "How do I descale the kettle?"}),
    "vector_stores.file_batches.create": Sample(body={"file_ids": ["{file_id}"]}, gives=_gives("file_batch_id")),
    "vector_stores.file_batches.retrieve": Sample(),
    "vector_stores.file_batches.list_files": Sample(),
    "vector_stores.file_batches.cancel": Sample(),
    "vector_stores.files.delete": Sample(),
    "vector_stores.delete": Sample(),
    "files.delete": Sample(),
    "batches.create": Sample(
        body={"input_file_id": "{batch_file_id}", "endpoint": "/v1/responses", "completion_window": "24h"},
        gives=_gives("batch_id"),
    ),
    "batches.list": Sample(query={"limit": 1}),
    "batches.retrieve": Sample(),
    "batches.cancel": Sample(),
    "webhooks.create": Sample(
        body={"name": "orders", "url": "{receiver_url}", "event_types": ["response.completed"]},
        gives=_gives("endpoint_id"),
    ),
    "webhooks.list": Sample(),
    "webhooks.retrieve": Sample(),
    "webhooks.update": Sample(body={"event_types": ["response.completed", "response.failed"]}),
    "webhooks.test": Sample(body={"event_type": "response.completed"}),
    "webhooks.rotate_secret": Sample(body={"keep_old_secret_active_for_24_hours": True}),
    "webhooks.event_types.list": Sample(),
    "webhooks.delete": Sample(),
    "skills.create": Sample(form={"files[]": "@greetings/SKILL.md"}, gives=_gives("skill_id")),
    "skills.list": Sample(),
    "skills.retrieve": Sample(),
    "skills.content.retrieve": Sample(),
    "skills.versions.create": Sample(form={"files[]": "@greetings/SKILL.md"}, gives=_gives("version", "version")),
    "skills.versions.list": Sample(),
    "skills.versions.retrieve": Sample(),
    "skills.versions.content.retrieve": Sample(),
    "skills.update": Sample(body={"default_version": "1"}),
    "skills.versions.delete": Sample(),
    "skills.delete": Sample(),
    "containers.create": Sample(body={"name": "sums"}, gives=_gives("container_id")),
    "containers.list": Sample(),
    "containers.retrieve": Sample(),
    "containers.files.create": Sample(form={"file": "@notes.txt"}, gives=_gives("container_file_id")),
    "containers.files.list": Sample(),
    "containers.files.retrieve": Sample(),
    "containers.files.content.retrieve": Sample(),
    "containers.files.delete": Sample(),
    "containers.delete": Sample(),
    "embeddings.create": Sample(body={"model": "demo-embedding", "input": "kettle", "dimensions": 4}),
    "moderations.create": Sample(body={"model": "omni-moderation-latest", "input": "What is 12*7?"}),
    "completions.create": Sample(body={"model": "base-model", "prompt": "Once", "max_tokens": 10}),
    "images.generate": Sample(body={"model": "gpt-image-1", "prompt": "A kettle", "size": "1024x1024"}),
    "images.edit": Sample(form={"model": "gpt-image-1", "prompt": "Add a cup", "image": "@photo.png"}),
    "audio.transcriptions.create": Sample(form={"model": "whisper-1", "file": "@talk.wav"}),
    "audio.translations.create": Sample(form={"model": "whisper-1", "file": "@talk.wav"}),
    "audio.speech.create": Sample(body={"model": "tts-1", "input": "Good day.", "voice": "alloy"}),
    "me.retrieve": Sample(),
    "admin.organization.projects.create": Sample(body={"name": "{project_name}"}, gives=_gives("project_id")),
    "admin.organization.projects.list": Sample(query={"limit": 1}),
    "admin.organization.projects.retrieve": Sample(),
    "admin.organization.projects.update": Sample(body={"name": "{project_name} 2"}),
    "admin.organization.projects.service_accounts.create": Sample(
        body={"name": "nightly"}, gives=_gives("service_account_id") | _gives("api_key_id", "api_key.id")
    ),
    "admin.organization.projects.service_accounts.list": Sample(),
    "admin.organization.projects.service_accounts.retrieve": Sample(),
    "admin.organization.projects.service_accounts.update": Sample(body={"name": "weekly"}),
    "admin.organization.projects.service_accounts.api_keys.create": Sample(body={"name": "second"}),
    "admin.organization.projects.api_keys.list": Sample(),
    "admin.organization.projects.api_keys.retrieve": Sample(),
    "admin.organization.projects.api_keys.update": Sample(body={"scopes": ["responses.write"]}),
    "admin.organization.projects.api_keys.delete": Sample(),
    "admin.organization.projects.service_accounts.delete": Sample(),
    "admin.organization.users.list": Sample(query={"limit": 1}),
    "admin.organization.users.retrieve": Sample(),
    "admin.organization.projects.users.create": Sample(body={"user_id": "{user_id}", "role": "member"}),
    "admin.organization.projects.users.list": Sample(),
    "admin.organization.projects.users.retrieve": Sample(),
    "admin.organization.projects.users.update": Sample(body={"role": "member"}),
    "admin.organization.projects.model_permissions.update": Sample(body={"mode": "allow_list", "model_ids": ["demo"]}),
    "admin.organization.projects.model_permissions.retrieve": Sample(),
    "admin.organization.projects.model_permissions.delete": Sample(),
    "admin.organization.projects.hosted_tool_permissions.retrieve": Sample(),
    "admin.organization.projects.hosted_tool_permissions.update": Sample(body={"web_search": {"enabled": False}}),
    "admin.organization.projects.rate_limits.list_rate_limits": Sample(gives=_gives("rate_limit_id", "data.0.id")),
    "admin.organization.projects.rate_limits.update_rate_limit": Sample(body={"max_requests_per_1_minute": 60}),
    "admin.organization.projects.spend_limit.update": Sample(
        body={"threshold_amount": 50000, "currency": "USD", "interval": "month"}
    ),
    "admin.organization.projects.spend_limit.retrieve": Sample(),
    "admin.organization.projects.spend_limit.delete": Sample(),
    "admin.organization.projects.spend_alerts.create": Sample(
        body={
            "threshold_amount": 40000, "currency": "USD", "interval": "month",
            "notification_channel": {"type": "email", "recipients": ["{member_email}"]},
        },
        gives=_gives("alert_id"),
    ),
    "admin.organization.projects.spend_alerts.list": Sample(),
    "admin.organization.projects.spend_alerts.retrieve": Sample(),
    "admin.organization.projects.spend_alerts.update": Sample(
        body={
            "threshold_amount": 30000, "currency": "USD", "interval": "month",
            "notification_channel": {"type": "email", "recipients": ["{member_email}"]},
        }
    ),
    "admin.organization.projects.spend_alerts.delete": Sample(),
    "admin.organization.projects.users.delete": Sample(),
    "admin.organization.projects.archive": Sample(),
    "admin.organization.audit_logs.list": Sample(query={"limit": 1}),
    "admin.organization.invites.create": Sample(
        body={"email": "{invited_email}", "role": "reader"}, gives=_gives("invite_id")
    ),
    "admin.organization.invites.list": Sample(query={"limit": 1}),
    "admin.organization.invites.retrieve": Sample(),
    "admin.organization.invites.delete": Sample(),
    "admin.organization.admin_api_keys.list": Sample(query={"limit": 1}),
    "admin.organization.admin_api_keys.retrieve": Sample(),
    "admin.organization.admin_api_keys.delete": Sample(),
    "admin.organization.users.delete": Sample(),
    **{
        f"admin.organization.usage.{kind}": Sample(query={"start_time": 1764000000, "limit": 1})
        for kind in (
            "completions", "embeddings", "moderations", "images", "audio_speeches", "audio_transcriptions",
            "vector_stores", "code_interpreter_sessions", "file_search_calls", "web_search_calls", "costs",
        )
    },
}  # fmt: skip
EXAMPLE_IDS: Mapping[str, str] = {
    "response_id": "resp_01a22d13d457upu9o0fc9mgrmp9c",
    "conversation_id": "conv_01a22d13d45b3m2k8s0d7c1x9a4e",
    "approval_request_id": "mcpr_01a22d13d4h2k7n3q8t5w1y6b4d9",
    "item_id": "msg_01a22d13d4dffipleg5rfqk45v94",
    "completion_id": "chatcmpl-01a22d13d5072q1r5v9z3b8n6m4k",
    "model": "demo",
    "file_id": "file_01a22d13d5a17h3j9l2p4r6t8v0x",
    "batch_file_id": "file_01a22d13d5b5c7e9g1i3k5m7o9q1",
    "upload_id": "upload_01a22d13d5c9b1d3f5h7j9l1n3p5",
    "part_id": "part_01a22d13d5ddc3e5g7i9k1m3o5q7",
    "vector_store_id": "vs_01a22d13d5f1d5f7h9j1l3n5p7r9",
    "file_batch_id": "vsfb_01a22d13d605e7g9i1k3m5o7q9s1",
    "batch_id": "batch_01a22d13d619f9h1j3l5n7p9r1t3",
    "receiver_url": "https://orders.example.com/webhooks",
    "endpoint_id": "we_01a22d13d62dg1i3k5m7o9q1s3u5",
    "skill_id": "skill_01a22d13d641h3j5l7n9p1r3t5v7",
    "version": "2",
    "container_id": "cntr_01a22d13d655i5k7m9o1q3s5u7w9",
    "container_file_id": "cfile_01a22d13d669j7l9n1p3r5t7v9x1",
    "project_id": "team_01a22d13d67dk9m1o3q5s7u9w1y3",
    "project_name": "research",
    "service_account_id": "svc_01a22d13d691l1n3p5r7t9v1x3z5",
    "api_key_id": "key_01a22d13d6a5m3o5q7s9u1w3y5a7",
    "user_id": "user-12",
    "member_email": "grace@example.com",
    "rate_limit_id": "rl_01a22d13d6b9n5p7r9t1v3x5z7b9",
    "alert_id": "alert_01a22d13d6cdo7q9s1u3w5y7a9c1",
    "invited_email": "ada@example.com",
    "invite_id": "invite_01a22d13d6e1p9r1t3v5x7z9b1d3",
    "key_id": "key_01a22d13d6f5q1s3u5w7y9a1c3e5",
}
"""The ids in the documentation."""
RENAMED: Mapping[str, Mapping[str, str]] = {
    **{
        f"vector_stores.file_batches.{action}": {"batch_id": "file_batch_id"}
        for action in ("retrieve", "cancel", "list_files")
    },
    **{
        f"containers.files.{action}": {"file_id": "container_file_id"}
        for action in ("retrieve", "delete", "content.retrieve")
    },
}
"""Ids in paths whose name another kind of object has as well."""


@cache
def examples() -> Mapping[str, Any]:
    """Return the example answers by operation: `answer`, and the `events` of a stream."""
    found: dict[str, Any] = {}
    for path in sorted(Path(__file__).with_name("examples").glob("*.json")):
        found |= json.loads(path.read_text())
    return found


def filled(value: Any, ids: Mapping[str, str] = EXAMPLE_IDS) -> Any:
    """Return a value of a sample with ids in place of the names in braces."""
    match value:
        case str():
            return re.sub(r"{(\w+)}", lambda found: ids[found[1]], value)
        case Mapping():
            return {key: filled(inner, ids) for key, inner in value.items()}
        case list():
            return [filled(inner, ids) for inner in value]
        case _:
            return value
