# mypy: allow-subclassing-any
"""Admin pages of guardrails and their decisions."""

from typing import Any

from django import forms
from django.contrib.admin import display, register
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.widgets import UnfoldAdminTextInputWidget

from console.filters import RelatedFilter, exact
from console.logs import LogAdmin
from console.widgets import TimeFilter, column, copyable, time_column, tone, two_lines
from core import egress
from core.errors import EgressRefused
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.content_access import HIDDEN, with_readable
from tenants.console.permissions import TeamScoped
from tenants.console.roles import LEADS, OPERATORS
from tenants.console.secrets import SecretForm, WriteOnlySecrets, secret_badge, secret_field
from tenants.console.viewer import viewer_of
from tenants.models import Checker, Guardrail, GuardrailDecision

_TONES = {"passed": "success", "noted": "warning", "blocked": "danger", "failed": "warning"}


class GuardrailForm(SecretForm):
    """A guardrail with the secret of its hook."""

    secret = "hook_secret"  # noqa: S105 - the name of the column
    hook_url = forms.CharField(
        label="Hook URL",
        max_length=2000,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "https://guard.example.com/check"}),
        help_text="Receives the content to check. Must be a public address unless the configuration allows others.",
    )
    new_hook_secret = secret_field(
        "Hook secret", "Sent as a bearer token. Encrypted at rest and never shown again. Empty keeps the stored secret."
    )

    class Meta:
        model = Guardrail
        fields = [
            "team",
            "input_checker",
            "input_action",
            "output_checker",
            "output_action",
            "model",
            "hook_url",
            "fails_open",
        ]

    @override
    def clean(self) -> dict[str, Any]:
        """Require a model or a hook URL if a check uses one, and reject a URL that the platform may not call."""
        given = super().clean() or {}
        checkers = {given.get("input_checker"), given.get("output_checker")}
        url = given.get("hook_url") or ""
        if Checker.MODEL.value in checkers and not given.get("model"):
            self.add_error("model", "Enter a moderation model.")
        if Checker.HOOK.value in checkers and not url:
            self.add_error("hook_url", "Enter the URL of the hook.")
        if url:
            # Refuses private addresses now, and not only when the first check fails.
            try:
                egress.default().check(url)
            except EgressRefused as refused:
                self.add_error("hook_url", refused.message)
        return given

    @override
    def save(self, commit: bool = True) -> Any:
        # A secret is only for the URL that it was entered for.
        if "hook_url" in self.changed_data:
            self.instance.hook_secret = ""
        return super().save(commit)


@register(Guardrail)
class GuardrailAdmin(WriteOnlySecrets, AuditedAdmin, TeamScoped):
    """Guardrails, at most one per team."""

    empty_text = "A guardrail checks inputs and outputs before they reach the model or the client."
    add_label = "Add a guardrail"

    form = GuardrailForm
    secret_managers = LEADS
    destination_field = "hook_url"
    managers = LEADS | OPERATORS
    list_display = ["team", "input", "output", "secret_state", "fails"]
    list_select_related = ["team"]
    search_fields = ["team__name"]
    ordering = ["team__name"]
    autocomplete_fields = ["team"]
    fieldsets = [
        (None, {"fields": ["team"]}),
        ("Input", {"fields": [("input_checker", "input_action")]}),
        ("Output", {"fields": [("output_checker", "output_action")]}),
        ("Checks", {"fields": ["model", "hook_url", "new_hook_secret", "fails_open"]}),
    ]
    secret_state = column("Secret", secret_badge)
    fails = column("If a check fails", lambda row: "allowed" if row.fails_open else "blocked if the action is to block")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        # The team is the primary key: changing it would create a second guardrail.
        return ["team"] if obj else []

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)

    input = column(
        "Input",
        lambda row: (
            two_lines(row.get_input_checker_display(), row.get_input_action_display()) if row.input_checker else "–"
        ),
    )

    @display(description="Output")
    def output(self, row: Guardrail) -> SafeString | str:
        if not row.output_checker:
            return "–"
        return two_lines(row.get_output_checker_display(), row.get_output_action_display())


@register(GuardrailDecision)
class GuardrailDecisionAdmin(LogAdmin, TeamScoped):
    """The log of guardrail decisions, newest first."""

    empty_text = "Decisions appear here once a guardrail has checked a request."

    list_display = ["time", "team_name", "response", "stage", "outcome_badge", "found", "checker"]
    list_filter = [
        ("occurred_at", TimeFilter),
        ("team", RelatedFilter),
        exact("outcome", "outcome"),
        exact("response_id", "response ID"),
    ]
    list_prefetch = ("team",)

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_readable(viewer_of(request), super().get_queryset(request))

    # By id instead of time: ids are assigned in order of time, and the primary key has an index.
    ordering = ["-id"]
    fieldsets = [
        (
            None,
            {"fields": ["time", "response", ("stage", "checker"), ("outcome_badge", "blocked"), "found", "request_id"]},
        )
    ]
    time = time_column("Time", "occurred_at")
    team_name = column("Team", lambda row: row.team.name)
    response = column("Response", lambda row: copyable(row.response_id))
    outcome_badge = column("Outcome", lambda row: tone(_TONES, row.outcome))

    @display(description="Result")
    def found(self, row: Any) -> SafeString | str:
        """Return the categories and the reason."""
        # The reason may quote the content, so it is as protected as the content itself.
        names, reason = ", ".join(map(str, row.categories)), row.reason if row.readable else HIDDEN
        return two_lines(names, reason) if names or row.reason else "–"
