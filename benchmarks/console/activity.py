"""Test data beside the responses: refused requests, decisions, deliveries, checks, searchable text and other lists."""

from benchmarks.console.population import PADDING, Table

ENDPOINT_OF_TEAM = "'we_' || right(team_id, 36)"
_UNKNOWN_KEY = "u6 < 0.1"
_TEAM, _KEY = (f"CASE WHEN {_UNKNOWN_KEY} THEN '' ELSE {name} END" for name in ("team_id", "key_id"))
# One row of each minute or hour, as the platform counts these requests. Refused requests are deleted after 30 days.
_MINUTES = (
    f"(SELECT DISTINCT ON (date_trunc('minute', at), {_TEAM}, {_KEY}) * FROM seed "
    "WHERE i % 20 = 1 AND at > now() - interval '30 days') AS part"
)
_HOURS = "(SELECT DISTINCT ON (date_trunc('hour', at), team_id, key_id) * FROM seed WHERE i % 20 = 2) AS part"
_OBJECT_ID = "'{prefix}' || substr(id, 6)"
_REFUSED = {
    "team_id": _TEAM,
    "minute": "date_trunc('minute', at)",
    "api_key_id": _KEY,
    "status": f"CASE WHEN {_UNKNOWN_KEY} THEN 401 WHEN u6 < 0.6 THEN 400 ELSE 404 END",
    "code": f"CASE WHEN {_UNKNOWN_KEY} THEN 'invalid_api_key' WHEN u6 < 0.6 THEN 'invalid_value' "
    "ELSE 'model_not_found' END",
    "method": "'POST'",
    "route": "'/v1/responses'",
    "count": "1 + (20 * u5)::int",
    "last_at": "at",
    "request_id": "replace(id, 'resp_', 'req_')",
    "path": "'/v1/responses'",
    "model": "model",
    "message": "'The request was refused.'",
}
_REJECTED = {
    "team_id": "team_id",
    "hour": "date_trunc('hour', at)",
    "api_key_id": "key_id",
    "limit": "CASE WHEN u6 < 0.5 THEN 'requests_per_minute' ELSE 'tokens_per_minute' END",
    "subject": "'key'",
    "endpoint": "'responses'",
    "count": "1 + (50 * u5)::int",
}
_CHECK = {
    "team_id": "team_id",
    "occurred_at": "at",
    "response_id": "id",
    "stage": "'input'",
    "checker": "'model'",
    "outcome": "CASE WHEN u5 < 0.05 THEN 'blocked' WHEN u5 < 0.2 THEN 'noted' ELSE 'passed' END",
    "blocked": "u5 < 0.05",
    "request_id": "replace(id, 'resp_', 'req_')",
}
_DECISION = {
    "id": _OBJECT_ID.format(prefix="mcpr_"),
    "team_id": "team_id",
    "response_id": "id",
    "call_id": "'call_' || i || '_1'",
    "turn": "1",
    # A few of the latest are undecided.
    "state": "CASE WHEN at > now() - interval '1 day' AND u5 < 0.3 THEN 'asked' WHEN u5 < 0.5 THEN 'denied' "
    "ELSE 'granted' END",
    "asked_at": "at",
    "expires_at": "at + interval '7 days'",
    "announced_at": "at",
    "answered_at": "CASE WHEN at > now() - interval '1 day' AND u5 < 0.3 THEN NULL ELSE at + interval '1 minute' END",
    "decided_by": "CASE WHEN at > now() - interval '1 day' AND u5 < 0.3 THEN '' ELSE 'user:administrator' END",
}
_WEBHOOK = {
    "team_id": "team_id",
    "created_at": "at",
    "state": "CASE WHEN u5 < 0.05 THEN 'failed' ELSE 'delivered' END",
    "delivered_at": "CASE WHEN u5 >= 0.05 THEN at + interval '1 second' END",
    "attempts": "1",
    "last_status": "CASE WHEN u5 < 0.05 THEN 503 ELSE 204 END",
    "last_ms": "(20 + 400 * u5)::int",
    "event_id": _OBJECT_ID.format(prefix="evt_"),
    "endpoint_id": ENDPOINT_OF_TEAM,
    "event_type": "'response.' || status",
    "object_id": "id",
}
_COMPLETION = {
    "team_id": "team_id",
    "id": _OBJECT_ID.format(prefix="chatcmpl-"),
    "api_key_id": "key_id",
    "created_at": "at",
    "model": "model",
    "metadata": """'{"shop": "s1"}'::jsonb""",
    "messages": """'[{"role": "user", "content": "Where is the parcel?"}]'::jsonb""",
    "body": '(\'{"id": "chatcmpl-\' || substr(id, 6) || \'", "object": "chat.completion", "choices": [{"index": 0, '
    f'"message": {{"role": "assistant", "content": "{PADDING}"}}, "finish_reason": "stop"}}]}}\')::jsonb',
    "request_id": "replace(id, 'resp_', 'req_')",
}
_FILE = {
    "team_id": "team_id",
    "id": _OBJECT_ID.format(prefix="file_"),
    "api_key_id": "key_id",
    "filename": "'parcel-' || i || '.pdf'",
    "purpose": "'user_data'",
    "content_type": "'application/pdf'",
    "size": "(1000 + 100000 * u5)::int",
    "sha256": "repeat('0', 64)",
    "state": "'ready'",
    "created_at": "at",
}
_BATCH = {
    "team_id": "team_id",
    "id": _OBJECT_ID.format(prefix="batch_"),
    "api_key_id": "key_id",
    "created_at": "at",
    "status": "'completed'",
    "ending": "'completed'",
    "endpoint": "'/v1/responses'",
    "completion_window": "'24h'",
    "model": "model",
    "input_file_id": _OBJECT_ID.format(prefix="file_"),
    "total": "100",
    "completed": "100",
    "expires_at": "at + interval '1 day'",
    "ended_at": "at + interval '1 hour'",
}
_SEARCHABLE = {
    "team_id": "team_id",
    "item_id": "lpad(to_hex(i * 4), 32, '0')::uuid",
    "speaker": "'user'",
    "created_at": "at",
    "text": f"'Where is the parcel ' || i || ', and when will it be here? {PADDING}'",
}


def tables() -> list[Table]:
    """Return the tables to fill from the seed, for `population.load`."""
    from conversations.models import File
    from responses.models import ChatCompletion, Decision, SearchText
    from responses.models.batches import Batch
    from responses.webhooks.models import WebhookDelivery
    from tenants.models import GuardrailDecision, RefusedRequest, RejectedRequest

    return [
        Table(model=RefusedRequest, columns=_REFUSED, source=_MINUTES),
        Table(model=RejectedRequest, columns=_REJECTED, source=_HOURS),
        Table(model=GuardrailDecision, columns=_CHECK, source="seed WHERE i % 20 = 3"),
        Table(model=Decision, columns=_DECISION, source="seed WHERE i % 100 = 4"),
        Table(model=WebhookDelivery, columns=_WEBHOOK, source="seed WHERE i % 20 = 5"),
        Table(model=ChatCompletion, columns=_COMPLETION, source="seed WHERE i % 20 = 6"),
        Table(model=File, columns=_FILE, source="seed WHERE i % 100 = 7"),
        Table(model=Batch, columns=_BATCH, source="seed WHERE i % 1000 = 8"),
        Table(model=SearchText, columns=_SEARCHABLE, source="seed WHERE i % 10 = 0"),
    ]
