# mypy: allow-subclassing-any
"""Admin pages of connectors (MCP servers that requests select by name) and of search engines for web search."""

from typing import Any

from django import forms
from django.contrib.admin import register
from django.utils.html import format_html
from typing_extensions import override
from unfold.widgets import UnfoldAdminTextInputWidget

from console.widgets import column
from core.egress_policy import parse_url
from core.errors import EgressRefused
from tenants.console.secrets import SecretForm, WriteOnlySecrets, forget_field, secret_badge, secret_field
from tenants.console.team_access import SharedObjectAdmin, TeamsInline
from tenants.models import Connector, ConnectorVisibility, SearchEngine, SearchEngineVisibility, SearchKind


def _check_url(url: str) -> str:
    # The client parses URLs more strictly than browsers do, so that checks and connections agree on the host.
    try:
        parse_url(url)
    except EgressRefused as refused:
        raise forms.ValidationError("Enter the URL in its plain form, without unusual notation.") from refused
    return url


class ConnectorForm(SecretForm):
    """A connector with its bearer token."""

    secret = "authorization"  # noqa: S105 - the name of the column
    help_if_set = "A token is set. Leave this empty to keep it."
    name = forms.RegexField(
        r"^[a-zA-Z0-9_-]+$",
        max_length=64,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "connector_wiki"}),
        help_text="Value of connector_id in requests.",
        error_messages={"invalid": "Enter only letters, digits, '_' and '-'."},
    )
    url = forms.RegexField(
        # No "@": credentials belong into the token field, where they are encrypted.
        r"^https?://[^\s/?#@]+(/[^\s#]*)?$",
        label="URL",
        max_length=2000,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "https://mcp.example.com/mcp"}),
        help_text="A private address becomes reachable for everyone who may use the connector.",
        error_messages={"invalid": "Enter an http or https URL without user name and password."},
    )
    new_authorization = secret_field(
        "Authorization", "Bearer token for requests that send none. Encrypted at rest and never shown again."
    )
    forget_authorization = forget_field("Remove the stored token")

    class Meta:
        model = Connector
        fields = ["name", "title", "url", "require_approval", "wait_for_approval", "honours_effect_ids", "enabled"]

    def clean_url(self) -> str:
        """Reject URLs that the platform's HTTP client would reject."""
        return _check_url(self.cleaned_data["url"])


class ConnectorVisibilityInline(TeamsInline):
    """Teams that may use a connector."""

    model = ConnectorVisibility


@register(Connector)
class ConnectorAdmin(WriteOnlySecrets, SharedObjectAdmin):
    """MCP servers by name."""

    empty_text = "A connector is an MCP server that requests use by name."
    add_label = "Add a connector"

    form = ConnectorForm
    destination_field = "url"
    list_display = ["name", "title", "shown_url", "token_state", "visible_to", "state", "created"]
    list_filter = ["enabled"]
    search_fields = ["name", "title", "url"]
    ordering = ["name"]
    inlines = [ConnectorVisibilityInline]
    fieldsets = [
        (None, {"fields": ["name", "title", "url", "new_authorization", "forget_authorization", "enabled"]}),
        ("Approvals", {"fields": ["require_approval", "wait_for_approval"]}),
        ("Effects", {"fields": ["honours_effect_ids"]}),
    ]
    shown_url = column("URL", lambda connector: format_html('<code class="c-code">{}</code>', connector.url))
    token_state = column("Token", secret_badge)


class SearchEngineForm(SecretForm):
    """A search engine with its API key."""

    base_url = forms.RegexField(
        r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        label="URL",
        max_length=2000,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "http://searxng:8080"}),
        help_text="Leave empty to use the public service. Required for SearXNG.",
        error_messages={"invalid": "Enter an http or https URL without user name, password and query."},
    )
    new_api_key = secret_field(
        "API key", "Encrypted at rest and never shown again. Leave empty to keep the stored key."
    )

    class Meta:
        model = SearchEngine
        fields = ["name", "kind", "base_url", "enabled"]

    def clean_base_url(self) -> str:
        """Reject URLs that the platform's HTTP client would reject."""
        url: str = self.cleaned_data["base_url"]
        return _check_url(url) if url else url

    @override
    def clean(self) -> dict[str, Any]:
        """Require a URL for SearXNG and a key for the public services."""
        given = super().clean() or {}
        kind = given.get("kind")
        # The database enforces this as well; without the check here, saving would fail with a server error.
        if kind == SearchKind.SEARXNG and not given.get("base_url") and "base_url" not in self.errors:
            self.add_error("base_url", "Enter the URL of your SearXNG instance; there is no public service.")
        has_key = given.get("new_api_key") or getattr(self.instance, "has_secret", False)
        if kind in {SearchKind.TAVILY, SearchKind.BRAVE} and not has_key:
            self.add_error("new_api_key", "This search engine requires an API key.")
        return given


class SearchEngineVisibilityInline(TeamsInline):
    """Teams that may use a search engine."""

    model = SearchEngineVisibility


@register(SearchEngine)
class SearchEngineAdmin(WriteOnlySecrets, SharedObjectAdmin):
    """Search engines."""

    empty_text = "Web search needs a search engine."
    add_label = "Add a search engine"

    form = SearchEngineForm
    destination_field = "base_url"
    list_display = ["name", "kind", "shown_url", "key_state", "visible_to", "state", "created"]
    list_filter = ["enabled", "kind"]
    search_fields = ["name", "base_url"]
    ordering = ["name"]
    inlines = [SearchEngineVisibilityInline]
    fieldsets = [(None, {"fields": ["name", "kind", "base_url", "new_api_key", "enabled"]})]
    shown_url = column(
        "URL", lambda engine: format_html('<code class="c-code">{}</code>', engine.base_url or "public service")
    )
    key_state = column("API key", secret_badge)
