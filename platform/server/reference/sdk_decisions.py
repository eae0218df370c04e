"""Reasons why this server does not accept some requests of the openai SDK.

`manage.py api_coverage` writes them to docs/reference/api-coverage.md and reports differences without a decision.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

_PRODUCT = "a product of its own, beyond inference"
_RUNS_JOBS = "the models are trained and tested where they run, not here"


@dataclass(frozen=True, slots=True)
class Decision:
    """Differences and the reason for them. In the patterns, `*` stands for any text."""

    patterns: tuple[str, ...]
    reason: str

    def covers(self, gap: str) -> bool:
        """Return whether a difference, as `sdk_comparison.gaps` names it, matches a pattern."""
        return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), gap) for pattern in self.patterns)


DECISIONS = (
    Decision(
        ("POST /organization/invites: role=owner",),
        "owners are administrators, which only the console appoints",
    ),
    Decision(
        ("POST /organization/admin_api_keys",),
        "administrators create admin keys, in the console or with `create_key`: a leaked one must not make another",
    ),
    Decision(
        ("POST /organization/users/{user_id}",),
        "owners are administrators, whom only the console appoints; the other fields describe customers of OpenAI",
    ),
    Decision(
        (
            "* /organization/roles*",
            "* /organization/users/{user_id}/roles*",
            "* /organization/groups*",
            "* /organization/projects/{project_id}/groups*",
            "* /projects/{project_id}/*",
        ),
        "roles are fixed: lead, developer and auditor of a team, operator, platform auditor and administrator; there "
        "are no groups, and an OpenID Connect provider decides who may sign in",
    ),
    Decision(
        ("* /organization/certificates*", "* /organization/projects/{project_id}/certificates*"),
        "a proxy in front of the platform can verify client certificates; keys can be bound to networks",
    ),
    Decision(
        ("* /organization/external_keys*", "* /organization/projects*: external_key_id"),
        "data is encrypted with the key of the server's configuration, not with keys of a cloud provider",
    ),
    Decision(
        (
            "* /organization/external_storage*",
            "* /organization/projects*: geography",
            "* /organization/projects*: residency",
        ),
        "all data is stored where the operator runs the platform",
    ),
    Decision(
        ("* /organization/data_retention", "* /organization/projects/{project_id}/data_retention"),
        "the retention of data is configured in days, see [configuration](configuration.md), not by contracts with "
        "OpenAI; `store: false` stores no content",
    ),
    Decision(
        ("* /organization/workload_identity_providers*",),
        "programs authenticate with keys of service accounts, which expire and can be rotated",
    ),
    Decision(
        ("* /organization/spend_limit", "* /organization/spend_alerts*"),
        "a budget belongs to a team, a key or an end user; the platform as a whole has none",
    ),
    Decision(
        ("* /organization/projects/{project_id}/service_tier_settings",),
        "the upstream defines the service tiers; `service_tier` is forwarded to it",
    ),
    Decision(
        (
            "POST /organization/projects/{project_id}/rate_limits/{rate_limit_id}: batch_1_day_max_input_tokens",
            "POST /organization/projects/{project_id}/rate_limits/{rate_limit_id}: max_audio_megabytes_per_1_minute",
            "POST /organization/projects/{project_id}/rate_limits/{rate_limit_id}: max_images_per_1_minute",
        ),
        "limits count requests and tokens, including those of images, audio and batches",
    ),
    Decision(
        ("POST /organization/projects/{project_id}/service_accounts/{service_account_id}: role=owner",),
        "the scopes of its keys determine the permissions of a service account",
    ),
    Decision(
        ("POST /organization/projects/{project_id}/spend_alerts*: notification_channel.subject_prefix",),
        "the subject of a mail begins with the percentage of the budget",
    ),
    Decision(
        ("GET /organization/audit_logs: tenant_only",),
        "a server has a single organization",
    ),
    Decision(("GET /organization/usage/decisions",), "decisions are a beta of OpenAI that this server does not have"),
    Decision(
        (
            "GET /organization/usage/images: *",
            "GET /organization/usage/file_search_calls: *",
            "GET /organization/usage/web_search_calls: *",
        ),
        "usage records name model, key and team, but no sizes of images, vector stores or search contexts",
    ),
    Decision(("* /fine_tuning/*", "* /evals*", "DELETE /models/{model}"), _RUNS_JOBS),
    Decision(
        ("* /assistants*", "* /threads*"),
        "the Assistants API was shut down by OpenAI; responses and conversations replace it",
    ),
    Decision(("* /agents*", "* /vaults*", "* /chatkit/*", "* /decisions"), f"a beta: {_PRODUCT}"),
    Decision(
        ("* /realtime/*", "* /live/*"), "audio sessions need media servers; chat-completions models have no equivalent"
    ),
    Decision(("* /videos*",), f"video generation is {_PRODUCT}"),
    Decision(
        ("* /audio/voice*",),
        "voices are created by the provider of the model; use the names of existing ones in `voice`",
    ),
    Decision(("POST /images/variations",), "a legacy endpoint that only dall-e-2 supports; use `/images/edits`"),
    Decision(("* /safety/*", "POST /content_provenance_checks"), "reports of OpenAI about its own models and images"),
    Decision(
        ("POST /batches: endpoint=*",),
        "batches contain requests for responses, chat completions or embeddings; send the others one by one",
    ),
    Decision(
        ("POST /chat/completions: moderation",),
        "guardrails of the team check chat completions; `moderation` is supported by `/responses`",
    ),
    Decision(
        (
            "* /responses*: betas",
            "* /responses*: multi_agent",
            "* /responses*: input[]*.agent",
            "* /responses*: *agent_*",
        ),
        "multi-agent runs are a beta of OpenAI's models, see [decisions](../concepts/decisions.md)",
    ),
    Decision(
        ("* /responses*: tools[][programmatic_tool_calling]",),
        "needs a JavaScript sandbox and models trained for it, see [decisions](../concepts/decisions.md)",
    ),
    Decision(
        ("POST /responses/input_tokens: personality",), "not a parameter of `POST /responses`, whose input is counted"
    ),
    Decision(
        (
            "POST /images/*: complexity",
            "POST /images/*: frame_*",
            "POST /images/edits: markup",
            "POST /images/*: output_format=*",
            "POST /images/*: svg",
        ),
        "previews of OpenAI's image models for GIF and SVG; upstreams of this server return PNG, JPEG or WebP",
    ),
    Decision(("* /webhook_endpoints*: event_type*",), "events of products that this server does not have"),
)


def undecided(gaps: Collection[str]) -> list[str]:
    """Return the differences without a decision."""
    return [gap for gap in gaps if not any(decision.covers(gap) for decision in DECISIONS)]


def outdated(gaps: Collection[str]) -> list[str]:
    """Return the patterns of decisions that cover no difference any more."""
    patterns = [Decision((pattern,), decision.reason) for decision in DECISIONS for pattern in decision.patterns]
    return [decision.patterns[0] for decision in patterns if not any(decision.covers(gap) for gap in gaps)]
