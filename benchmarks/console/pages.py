"""Pages of the console with much data, each with the paths that are requested in turn.

`routes` has the other pages.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlencode

from benchmarks.console.known import Known
from benchmarks.console.population import RARE_ERROR, RARE_MODEL, RARE_TOOL, RARE_USER

LIST = "/admin/responses/response/"
CALLS = "/admin/responses/toolcall/"


def filters(known: Known) -> Mapping[str, Mapping[str, str]]:
    """Return each filter alone, with frequent, rare and non-existing values."""
    return {
        "no filter": {},
        "status failed": {"status__exact": "failed"},
        "status cancelled": {"status__exact": "cancelled"},
        "status completed": {"status__exact": "completed"},
        "status running (none)": {"status__exact": "in_progress"},
        "team, the largest": {"team__id__exact": known.big_team},
        "team, the smallest": {"team__id__exact": known.small_team},
        "key, busy": {"api_key__id__exact": known.busy_key},
        "key, idle": {"api_key__id__exact": known.idle_key},
        "model, frequent": {"model": "model-0"},
        "model, rare": {"model": RARE_MODEL},
        "model, unknown": {"model": "no-such-model"},
        "error, frequent": {"error_code": "server_error"},
        "error, rare": {"error_code": RARE_ERROR},
        "mode background": {"mode": "background"},
        "tool type mcp": {"tool_type": "mcp"},
        "tool type, rare": {"tool_type": "image_generation"},
        "tool, frequent": {"tool": "tool_1"},
        "tool, rare": {"tool": RARE_TOOL},
        "in a conversation": {"in_conversation": "yes"},
        "conversation id": {"conversation": known.conversation},
        "end user": {"end_user": RARE_USER},
        "metadata, frequent": {"metadata": "shop=s1"},
        "metadata, one": {"metadata": f"order={known.number}"},
        "metadata, unknown": {"metadata": "no=such"},
        "latency 10 s": {"least_ms": "10000"},
        "latency 30 min (none)": {"least_ms": "1800000"},
        "tokens in 10,000": {"least_input": "10000"},
        "tokens in 500,000 (none)": {"least_input": "500000"},
        "tokens out 1,000": {"least_output": "1000"},
        "cost 0.01": {"least_cost": "0.01"},
        "cost 10 (none)": {"least_cost": "10"},
        "request id": {"request": known.request},
    }


def pages(known: Known) -> dict[str, Sequence[str]]:
    """Return the paths of the pages by name."""
    return {
        **{name: (path,) for name, path in _response_pages(known).items()},
        **_lists(known),
        **_usage_pages(known),
        **_overviews(known),
    }


def url(path: str, **query: str) -> str:
    """Return a path with a query."""
    return f"{path}?{urlencode(query)}" if query else path


def _response_pages(known: Known) -> dict[str, str]:
    narrowed = filters(known)
    response = f"{LIST}{known.response}"
    return {
        **{
            f"list {period}, {name}": url(LIST, period=period, **query)
            for period in ("24h", "30d")
            for name, query in narrowed.items()
        },
        **{f"histogram {period}": url(f"{LIST}histogram/", period=period) for period in ("24h", "7d", "30d")},
        **{
            f"histogram 30d, {name}": url(f"{LIST}histogram/", period="30d", **narrowed[name])
            for name in ("model, rare", "mode background", "metadata, one", "tool, frequent")
        },
        "page 100 of the list": url(LIST, period="30d", p="100"),
        "oldest rows of the list": url(LIST, **_span("created_at", known.oldest, timedelta(hours=1))),
        "search by id": url(LIST, q=known.response),
        "search by request id": url(LIST, q=known.request),
        "search by id, unknown": url(LIST, q="resp_none"),
        "go to an id": f"/admin/go/{known.response}",
        "a row opened": f"{response}/summary/",
        "a response": f"{response}/change/",
        **{
            f"a response, {tab}": f"{response}/change/?tab={tab}"
            for tab in ("timeline", "events", "request", "response", "usage", "attempts", "audit")
        },
        "a response, chain": f"{response}/chain/",
        "compare with": url("/admin/compare/", a=known.response),
        "compare": url("/admin/compare/", a=known.response, b=known.other_response),
        "compare, other order": url("/admin/compare/", a=known.other_response, b=known.response),
    }


def _span(column: str, since: datetime, length: timedelta) -> dict[str, str]:
    """Return the filter of a list for a time range."""
    ends = {"from": since, "to": since + length}
    return {
        f"{column}_{name}_{index}": f"{moment:{style}}"
        for name, moment in ends.items()
        for index, style in enumerate(("%Y-%m-%d", "%H:%M:%S"))
    }


def _lists(known: Known) -> dict[str, Sequence[str]]:
    """Return the other lists of rows that grow with the number of responses."""
    teams = (known.big_team, known.small_team)
    decisions = "/admin/approvals/"
    refused = "/admin/refused/"
    files, batches = "/admin/conversations/file/", "/admin/responses/batch/"
    in_turn = {
        "tool calls": (
            CALLS,
            "started_at",
            ({"name": "tool_1"}, {"name": RARE_TOOL}, {"kind": "mcp"}, {"name": "none"}, {"min_ms": "60000"}),
        ),
        "usage records": (
            "/admin/tenants/usagerecord/",
            "occurred_at",
            ({"model": "model-0"}, {"model": RARE_MODEL}, {"outcome": "failed"}, {"outcome": "none"}),
        ),
        "audit log": (
            "/admin/tenants/auditevent/",
            "occurred_at",
            ({"action": "api_key.created"}, {"action": "none"}, {"actor": f"key:{known.busy_key}"}),
        ),
        "conversations": ("/admin/conversations/conversation/", "created_at", ({"active": "7d"},)),
        "webhook deliveries": (
            "/admin/responses/webhookdelivery/",
            "created_at",
            ({"state": "failed"}, {"state": "pending"}, {"event_type": "response.failed"}),
        ),
        "chat completions": (
            "/admin/responses/chatcompletion/",
            "created_at",
            ({"model": RARE_MODEL}, {"model": "none"}),
        ),
        "guardrail decisions": (
            "/admin/tenants/guardraildecision/",
            "occurred_at",
            ({"outcome": "blocked"}, {"outcome": "failed"}),
        ),
    }  # fmt: skip
    found: dict[str, Sequence[str]] = {}
    for name, (path, column, narrowed) in in_turn.items():
        for period in ("24h", "30d"):
            found[f"{name} {period}"] = (url(path, period=period),)
            found[f"{name} {period}, teams"] = [url(path, period=period, team__id__exact=team) for team in teams]
            for query in narrowed:
                text = ", ".join(f"{key}={value}" for key, value in query.items())
                found[f"{name} {period}, {text[:40]}"] = (url(path, period=period, **query),)
        found[f"{name}, last page"] = (url(path, period="30d", p="100"),)
        found[f"{name}, oldest"] = (url(path, **_span(column, known.oldest, timedelta(days=1))),)
    return {
        **found,
        "search of conversations": [
            url("/admin/conversations/conversation/", q=known.conversation),
            url("/admin/conversations/conversation/", q="conv_none"),
        ],
        "refused requests": [url(refused, period=period) for period in ("24h", "7d", "30d")],
        "refused requests 30d, filters": [
            url(refused, period="30d", **query)
            for query in (
                {"status": "401"}, {"status": "503"}, {"code": "model_not_found"}, {"code": "none"},
                {"key": known.busy_key}, {"key": known.idle_key}, {"team": known.big_team},
                {"team": known.small_team}, {"team": known.small_team, "status": "503"},
            )
        ],
        "rejected requests": [url("/admin/rejections/", range=name) for name in ("24h", "7d", "30d", "last_month")],
        "approvals": (decisions,),
        "approvals of a team": [url(decisions, team=team) for team in teams],
        "approvals decided": (url(decisions, state="decided"),),
        "approvals decided, of a kind": (url(decisions, state="decided", kind="question"),),
        "approvals expired": (url(decisions, state="expired"),),
        "tool charts": [
            url(f"{CALLS}charts/", period=period, sort=sort)
            for period in ("24h", "7d", "30d")
            for sort in ("calls", "failed", "p50", "p95", "max")
        ],
        "tool charts of a team": [
            url(f"{CALLS}charts/", period=period, team__id__exact=team, sort="p95")
            for period in ("24h", "30d")
            for team in teams
        ],
        "full-text search": [
            url("/admin/search-text/", q=words, period=period)
            for words in ("parcel", "nothing-like-this", str(known.number))
            for period in ("24h", "30d", "1y")
        ],
        "export of responses": [
            url(f"{LIST}export/", period=period, **query)
            for period in ("24h", "30d")
            for query in ({"error_code": RARE_ERROR}, {"model": "none"})
        ],
        "export of the audit log": [
            url("/admin/tenants/auditevent/export/", period="30d", format=kind) for kind in ("csv", "jsonl")
        ],
        "files": (files, f"{files}?p=100", url(files, team__id__exact=known.big_team)),
        "files, filters": [url(files, purpose__exact=name) for name in ("batch", "user_data")],
        "batches": (batches, f"{batches}?p=50", url(batches, team__id__exact=known.big_team)),
        "batches, filters": [url(batches, status__exact=name) for name in ("failed", "completed")],
    }  # fmt: skip


def _usage_pages(known: Known) -> dict[str, Sequence[str]]:
    usage, changes, pivot = "/admin/usage/", "/admin/usage/changes/", "/admin/usage/pivot/"
    ranges = ("24h", "today", "yesterday", "7d", "30d", "last_week", "this_month", "last_month")
    groups = ("none", "team", "key", "model", "upstream", "status", "mode", "endpoint", "tool")
    metrics = ("requests", "errors", "tokens_in", "cost", "p95", "ttft95", "tools", "calls")
    subjects: list[dict[str, str]] = [
        {"team": known.big_team}, {"team": known.small_team}, {"key": known.busy_key}, {"key": known.idle_key},
        {"model": RARE_MODEL}, {"model": "none"},
    ]  # fmt: skip
    return {
        "usage": [url(usage, range=name) for name in ranges],
        **{
            f"usage 30d, {metric}": [url(usage, range="30d", metric=metric, group=group) for group in groups]
            for metric in metrics
        },
        "usage 30d, filters": [url(usage, range="30d", **subject) for subject in subjects],
        # Its days are added up from hours, because they begin in the middle of a day of UTC.
        "usage 30d, another time zone": [
            url(usage, range="30d", metric=metric, group=group, tz="Asia/Kolkata")
            for metric in ("cost", "p95")
            for group in ("key", "model", "none")
        ],
        "usage 30d by the hour": (url(usage, range="30d", bucket="hour", group="model"),),
        **{
            f"usage changes {name}": [
                url(changes, range=name, metric=metric) for metric in ("requests", "cost", "errors", "tokens_in")
            ]
            for name in ranges
        },
        "usage changes 30d, filters": [url(changes, range="30d", metric="cost", **subject) for subject in subjects],
        **{
            f"usage pivot {rows} by {columns}": [
                url(pivot, range=name, rows=rows, columns=columns, metric=metric)
                for name in ("yesterday", "30d")
                for metric in ("requests", "cost")
            ]
            for rows, columns in (
                ("team", "model"), ("key", "model"), ("team", "mode"), ("status", "model"),
                ("user", "model"), ("tool", "team"), ("tag", "model"),
            )
        },
    }  # fmt: skip


def _overviews(known: Known) -> dict[str, Sequence[str]]:
    return {
        "home": ("/admin/",),
        "home 7d": ("/admin/?span=7d",),
        "home 30d": ("/admin/?span=30d",),
        "running jobs": ("/admin/live/",),
        "running jobs, rows": ("/admin/live/rows/",),
        "first steps": ("/admin/first-steps/",),
        "budgets": ("/admin/budgets/",),
        "model routes": ("/admin/routes/",),
        "limits of a team": [f"/admin/limits/{team}/" for team in (known.big_team, known.small_team)],
        "a team": [f"/admin/tenants/team/{team}/change/" for team in (known.big_team, known.small_team)],
        "API keys": ("/admin/tenants/apikey/",),
        "API keys of a team": (f"/admin/tenants/apikey/?team__id__exact={known.big_team}",),
        "an API key": [f"/admin/tenants/apikey/{key}/change/" for key in (known.busy_key, known.idle_key)],
        "quick search": [
            url("/admin/search/", s=words) for words in ("team", "parcel", known.response, known.conversation)
        ],
    }
