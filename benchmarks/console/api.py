"""Lists of the API with much data, each with the paths that are requested in turn."""

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlencode

from benchmarks.console.known import Known
from benchmarks.console.pages import url
from benchmarks.console.population import RARE_ERROR, RARE_MODEL, RARE_USER
from core.clock import now, unix

_USAGE = (
    "completions", "embeddings", "moderations", "images", "audio_speeches", "audio_transcriptions", "vector_stores",
    "code_interpreter_sessions", "file_search_calls", "web_search_calls",
)  # fmt: skip
_GROUPS: Sequence[Sequence[str]] = ((), ("project_id",), ("api_key_id",), ("model",), ("project_id", "model"))


def lists_of_a_team(known: Known) -> dict[str, Sequence[str]]:
    """Return the paths for a key of the largest team, by name."""
    responses = "/v1/responses"
    ten_days_ago = unix(now() - timedelta(days=10))
    filters: dict[str, Sequence[dict[str, str]]] = {
        "no filter": ({}, {"limit": "100"}, {"order": "asc"}),
        "last pages": (
            {"after": known.oldest_response, "order": "asc"},
            {"after": known.oldest_response},
            {"after": known.response},
        ),
        "end user": (
            {"user": RARE_USER}, {"user": "no-such-user"}, {"safety_identifier": RARE_USER},
            {"order": "asc", "user": RARE_USER},
        ),
        "error code": ({"error_code": "server_error"}, {"error_code": RARE_ERROR}, {"error_code": "none"}),
        "request id": ({"request_id": known.request}, {"request_id": "req_none"}),
        "metadata": (
            {"metadata[shop]": "s1"}, {"metadata[order]": str(known.number)}, {"metadata[no]": "such"},
            {"metadata[shop]": "s1", "metadata[order]": "0"},
        ),
        "model": ({"model": "model-0"}, {"model": RARE_MODEL}, {"model": "none"}),
        "status": tuple(
            {"status": status}
            for status in ("completed", "failed", "incomplete", "cancelled", "queued", "in_progress")
        ),
        "conversation": ({"conversation_id": known.conversation}, {"conversation_id": "conv_none"}),
        "created after": (
            {"created_after": str(ten_days_ago)}, {"created_after": str(ten_days_ago), "order": "asc"},
            {"created_after": str(unix(now()))}, {"created_after": "0", "created_before": str(unix(known.oldest))},
        ),
        "several filters": (
            {"model": "model-0", "status": "failed"}, {"model": RARE_MODEL, "status": "cancelled"},
            {"user": RARE_USER, "status": "failed"}, {"metadata[shop]": "s1", "status": "failed"},
            {"error_code": "server_error", "model": RARE_MODEL}, {"model": RARE_MODEL, "metadata[shop]": "s2"},
        ),
    }  # fmt: skip
    conversation = f"/v1/conversations/{known.conversation}"
    return {
        **{f"responses, {name}": [url(responses, **query) for query in queries] for name, queries in filters.items()},
        **{
            f"a response{path}": (f"{responses}/{known.response}{path}",)
            for path in ("", "/input_items", "/attempts", "/timeline")
        },
        "conversations": (
            "/v1/conversations",
            url("/v1/conversations", **{"metadata[no]": "such"}),
            url("/v1/conversations", created_after=str(ten_days_ago), order="asc"),
        ),
        "a conversation": (conversation, f"{conversation}/items"),
        "chat completions": (
            "/v1/chat/completions",
            url("/v1/chat/completions", model=RARE_MODEL),
            url("/v1/chat/completions", model="none"),
            url("/v1/chat/completions", **{"metadata[no]": "such"}),
        ),
        **{
            name.replace("_", " "): (f"/v1/{name}",)
            for name in ("batches", "vector_stores", "containers", "skills", "webhook_endpoints", "models")
        },
        "files": ("/v1/files", "/v1/files?purpose=batch"),
        "me": ("/v1/me", f"/v1/me?end_user={RARE_USER}"),
        **{f"usage, {name}": paths for name, paths in _usage().items()},
    }


def lists_of_the_organization(known: Known) -> dict[str, Sequence[str]]:
    """Return the paths for an admin key, by name."""
    organization = "/v1/organization"
    team = f"{organization}/projects/{known.big_team}"
    audit_logs = f"{organization}/audit_logs"
    return {
        **{f"organization usage, {name}": paths for name, paths in _usage().items()},
        "audit logs": (
            audit_logs,
            url(audit_logs, **{"event_types[]": "api_key.created"}),
            url(audit_logs, **{"project_ids[]": known.small_team}),
            url(audit_logs, **{"effective_at[lt]": str(unix(known.oldest))}),
        ),
        "projects": (f"{organization}/projects", team),
        "keys of a project": (f"{team}/api_keys",),
        "users": (f"{organization}/users", f"{team}/users"),
        "invites": (f"{organization}/invites",),
        "admin keys": (f"{organization}/admin_api_keys",),
        "limits of a project": (f"{team}/rate_limits", f"{team}/spend_alerts"),
    }


def _usage() -> dict[str, Sequence[str]]:
    """Return the usage of 31 days by the day, and of some days by the hour."""
    since = {"start_time": str(unix(now() - timedelta(days=31))), "bucket_width": "1d", "limit": "31"}
    hourly = {"start_time": str(unix(now() - timedelta(days=7))), "bucket_width": "1h", "limit": "168"}
    completions = "/v1/organization/usage/completions"
    costs = "/v1/organization/costs"
    return {
        **{name: (url(f"/v1/organization/usage/{name}", **since),) for name in _USAGE},
        "completions by group": [_grouped(completions, since, groups) for groups in _GROUPS],
        "completions, another time zone": [
            _grouped(completions, {**since, "time_zone": "Asia/Kolkata"}, groups) for groups in _GROUPS[:3]
        ],
        "completions by the hour": [_grouped(completions, hourly, groups) for groups in _GROUPS[:2]],
        "costs": [_grouped(costs, since, groups) for groups in ((), ("project_id",), ("line_item",))],
    }


def _grouped(path: str, query: dict[str, str], groups: Sequence[str]) -> str:
    return f"{path}?{urlencode([*query.items(), *(('group_by', group) for group in groups)])}"
