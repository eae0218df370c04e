# mypy: allow-subclassing-any
"""Admin pages of connectors, which are MCP servers that requests select by name. Tokens are write-only."""

from typing import Any

from django import forms
from django.contrib.admin import display, register
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from console.widgets import badge
from kernel.egress_policy import parse_url
from kernel.errors import EgressRefused
from tenants.admin.team_access import SharedObjectAdmin, TeamsInline
from tenants.console.secrets import WriteOnlySecrets
from tenants.models import Connector, ConnectorVisibility

_HAS_TOKEN = ExpressionWrapper(~Q(authorization=""), output_field=BooleanField())


class ConnectorForm(forms.ModelForm[Connector]):
    """A connector. `new_authorization` is write-only; leaving it empty keeps the stored token."""

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
    new_authorization = forms.CharField(
        required=False,
        strip=True,
        label="Authorization",
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text="Bearer token for requests that send none. Encrypted at rest and never shown again.",
    )
    forget_authorization = forms.BooleanField(
        required=False, label="Remove the stored token", widget=UnfoldBooleanSwitchWidget
    )

    class Meta:
        model = Connector
        fields = ["name", "title", "url", "enabled"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self.instance, "has_token", False):
            self.fields["new_authorization"].help_text = "A token is set. Leave this empty to keep it."
        else:
            self.fields.pop("forget_authorization", None)

    def clean_url(self) -> str:
        """Reject URLs that the platform's HTTP client would reject."""
        # The client parses URLs more strictly than browsers do, so that checks and connections agree on the host.
        url = str(self.cleaned_data["url"])
        try:
            parse_url(url)
        except EgressRefused as refused:
            message = "Enter the URL in its plain form, without unusual notation."
            raise forms.ValidationError(message) from refused
        return url

    @override
    def save(self, commit: bool = True) -> Connector:
        token = self.cleaned_data.get("new_authorization")
        if token or self.cleaned_data.get("forget_authorization"):
            self.instance.authorization = token or ""
        return super().save(commit)


class ConnectorVisibilityInline(TeamsInline):
    """Teams that may use a connector."""

    model = ConnectorVisibility


@register(Connector)
class ConnectorAdmin(WriteOnlySecrets, SharedObjectAdmin):
    """MCP servers by name. The token column is never read, so it is neither decrypted nor sent to a page."""

    form = ConnectorForm
    secret_fields = ("new_authorization", "forget_authorization")
    destination_field = "url"
    is_set_annotation = "has_token"
    list_display = ["name", "title", "shown_url", "token_state", "visible_to", "state", "created"]
    list_filter = ["enabled"]
    search_fields = ["name", "title", "url"]
    ordering = ["name"]
    inlines = [ConnectorVisibilityInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        # The page shows only whether a token is set, which the database can tell without decrypting it.
        rows = rows.defer("authorization").annotate(has_token=_HAS_TOKEN).prefetch_related("teams")
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        has_token = obj is not None and obj.has_token
        secret = ["new_authorization", "forget_authorization"] if has_token else ["new_authorization"]
        return [(None, {"fields": ["name", "title", "url", *secret, "enabled"]})]

    @display(description="URL")
    def shown_url(self, connector: Connector) -> SafeString:
        return format_html('<code class="c-code">{}</code>', connector.url)

    @display(description="Token")
    def token_state(self, connector: Any) -> SafeString:
        return badge("set", "success") if connector.has_token else badge("none")
