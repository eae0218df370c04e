# mypy: allow-subclassing-any
"""Admin pages of search engines for web search. API keys are write-only."""

from typing import Any

from django import forms
from django.contrib.admin import display, register
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

from console.widgets import badge
from kernel.egress_policy import parse_url
from kernel.errors import EgressRefused
from tenants.admin.team_access import SharedObjectAdmin, TeamsInline
from tenants.console.secrets import WriteOnlySecrets
from tenants.models import SearchEngine, SearchEngineVisibility, SearchKind

_HAS_KEY = ExpressionWrapper(~Q(api_key=""), output_field=BooleanField())


class SearchEngineForm(forms.ModelForm[SearchEngine]):
    """A search engine. `new_api_key` is write-only; leaving it empty keeps the stored key."""

    base_url = forms.RegexField(
        r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        label="URL",
        max_length=2000,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "http://searxng:8080"}),
        help_text="Leave empty to use the public service. Required for SearXNG.",
        error_messages={"invalid": "Enter an http or https URL without user name, password and query."},
    )
    new_api_key = forms.CharField(
        required=False,
        strip=True,
        label="API key",
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text="Encrypted at rest and never shown again. Leave empty to keep the stored key.",
    )

    class Meta:
        model = SearchEngine
        fields = ["name", "kind", "base_url", "enabled"]

    @override
    def clean(self) -> dict[str, Any]:
        """Require a URL for SearXNG and a key for the public services."""
        given = super().clean() or {}
        url, kind = given.get("base_url") or "", given.get("kind")
        # The database enforces this as well; without the check here, saving would fail with a server error.
        if kind == SearchKind.SEARXNG and not url and "base_url" not in self.errors:
            self.add_error("base_url", "Enter the URL of your SearXNG instance; there is no public service.")
        if url:
            try:
                parse_url(url)
            except EgressRefused:
                self.add_error("base_url", "Enter the URL in its plain form, without unusual notation.")
        has_key = given.get("new_api_key") or getattr(self.instance, "has_key", False)
        if kind in {SearchKind.TAVILY, SearchKind.BRAVE} and not has_key:
            self.add_error("new_api_key", "This search engine requires an API key.")
        return given

    @override
    def save(self, commit: bool = True) -> SearchEngine:
        if key := self.cleaned_data.get("new_api_key"):
            self.instance.api_key = key
        return super().save(commit)


class SearchEngineVisibilityInline(TeamsInline):
    """Teams that may use a search engine."""

    model = SearchEngineVisibility


@register(SearchEngine)
class SearchEngineAdmin(WriteOnlySecrets, SharedObjectAdmin):
    """Search engines. The key column is never read, so it is never decrypted for a page."""

    form = SearchEngineForm
    secret_fields = ("new_api_key",)
    destination_field = "base_url"
    list_display = ["name", "kind", "shown_url", "key_state", "visible_to", "state", "created"]
    list_filter = ["enabled", "kind"]
    search_fields = ["name", "base_url"]
    ordering = ["name"]
    inlines = [SearchEngineVisibilityInline]
    fieldsets = [(None, {"fields": ["name", "kind", "base_url", "new_api_key", "enabled"]})]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        rows = rows.defer("api_key").annotate(has_key=_HAS_KEY).prefetch_related("teams")
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

    @display(description="URL")
    def shown_url(self, engine: SearchEngine) -> SafeString:
        return format_html('<code class="c-code">{}</code>', engine.base_url or "public service")

    @display(description="API key")
    def key_state(self, engine: Any) -> SafeString:
        return badge("set", "success") if engine.has_key else badge("none")
