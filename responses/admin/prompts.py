# mypy: allow-subclassing-any
"""Prompt templates of teams. The page edits the current version; saving changed content creates the next version."""

import json
from typing import Any

from django import forms
from django.contrib.admin import register
from django.core.exceptions import ValidationError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from typing_extensions import override
from unfold.admin import TabularInline
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from console.widgets import column, id_column, json_block, time_column
from core.errors import BadRequest
from responses.models import PromptTemplate, PromptVersion
from responses.requests import prompts
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.content_access import audit_read
from tenants.console.permissions import ByRole, TeamScoped
from tenants.console.roles import LEADS
from tenants.console.viewer import viewer_of

_CONTENT = ("messages", "model", "parameters")
_EXAMPLE = [{"role": "developer", "content": "Answer {{customer}} in one sentence."}]


class JsonText(forms.JSONField):
    """JSON field that shows its value indented."""

    @override
    def prepare_value(self, value: Any) -> Any:
        # After a validation error the value is the text that the user entered.
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _json_area(rows: int) -> UnfoldAdminTextareaWidget:
    return UnfoldAdminTextareaWidget(attrs={"rows": rows, "style": "font-family: monospace", "spellcheck": "false"})


class PromptForm(forms.ModelForm[PromptTemplate]):
    """Prompt template with the content of its current version."""

    current = forms.TypedChoiceField(
        coerce=int,
        label="Current version",
        widget=UnfoldAdminSelectWidget,
        help_text="Used by requests that do not specify a version.",
    )
    messages = JsonText(
        initial=_EXAMPLE,
        widget=_json_area(rows=12),
        help_text="List of messages with role (system, developer, user or assistant) and content. {{name}} inserts "
        "a variable. Changes are saved as a new version.",
    )
    model = forms.CharField(
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Used by requests that do not specify a model.",
    )
    parameters = JsonText(
        required=False,
        initial=dict,
        widget=_json_area(rows=4),
        help_text='Defaults for requests that do not set them, for example {"temperature": 0.2}.',
    )

    class Meta:
        model = PromptTemplate
        fields = ["team", "name", "current"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A new prompt has no versions to choose from.
        if self.instance._state.adding:  # noqa: SLF001 - documented
            self.fields.pop("current", None)
            return
        versions = {version.number: version for version in self.instance.versions.order_by("number")}
        choices = [(number, f"Version {number}") for number in reversed(versions)]
        self.fields["current"].choices = choices  # type: ignore[attr-defined]  # the field's own type is lost in the dict
        content = versions[self.instance.current]
        self.initial.update({name: getattr(content, name) for name in _CONTENT})

    @override
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        # An empty box means no defaults; the API's own validation expects an object.
        cleaned["parameters"] = cleaned.get("parameters") or {}
        if "messages" in cleaned:
            values = {name: cleaned.get(name) or type(cleaned[name])() for name in _CONTENT}
            # The same validation as in the API. Each error is shown at the form field that caused it.
            try:
                self.content = prompts.parse_prompt_content(values)
            except BadRequest as error:
                field = "messages" if (error.param or "").startswith("messages") else "parameters"
                raise ValidationError({field: error.message}) from error
        return cleaned

    def has_new_content(self) -> bool:
        """Return true if the content differs from the current version, so that a new version is needed."""
        return bool(set(_CONTENT) & set(self.changed_data)) or not self.instance.versions.exists()


class VersionInline(ByRole, TabularInline):
    """Versions of a prompt, newest first. Versions are immutable."""

    model = PromptVersion
    extra = 0
    can_delete = False
    hide_title = True
    ordering = ["-number"]
    verbose_name_plural = "versions"
    fields = ["number", "message_list", "model", "set_parameters", "created", "created_by"]
    readonly_fields = fields
    message_list = column("Messages", lambda version: json_block(version.messages))
    set_parameters = column("Parameters", lambda version: json_block(version.parameters))
    created = time_column("Created", "created_at")

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@register(PromptTemplate)
class PromptAdmin(AuditedAdmin, TeamScoped):
    """Prompt templates. Team leads edit them, all members of the team see them."""

    empty_text = "A prompt is a stored template with variables, which requests use by its ID."
    add_label = "Create a prompt"

    managers = LEADS
    form = PromptForm
    list_display = ["name", "public_id", "team", "current", "version_count", "created"]
    list_select_related = ["team"]
    search_fields = ["name", "id"]
    ordering = ["name"]
    inlines = [VersionInline]
    change_form_after_template = "admin/responses/prompttemplate/after.html"
    readonly_fields = ["public_id", "created"]
    list_annotations = {"version_count": Count("versions")}
    public_id = id_column()
    version_count = column("Versions", lambda prompt: prompt.version_count)
    created = time_column("Created", "created_at", ordering="created_at")

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # The form shows the content, so it requires the permission to read it.
        return super().has_change_permission(request, obj) and (obj is None or viewer_of(request).may_read(obj.team_id))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.readonly_fields, "team"] if obj else self.readonly_fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        if obj is None:
            return [(None, {"fields": ["team", "name", *_CONTENT]})]
        fields: list[Any] = [("public_id", "created"), "team", "name", "current"]
        if not self.has_change_permission(request, obj):
            return [(None, {"fields": fields})]
        return [(None, {"fields": fields}), ("Next version", {"fields": list(_CONTENT)})]

    # Versions are content: hidden from users who may not read it.
    def get_inlines(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return self.inlines if obj and viewer_of(request).may_read(obj.team_id) else []

    @override
    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        prompt = kwargs.get("obj") or (args[3] if len(args) > 3 else None)
        if prompt is not None and viewer_of(request).may_read(prompt.team_id):
            audit_read(viewer_of(request), prompt, team_id=prompt.team_id)
        elif prompt is not None:
            context["hidden_team"] = prompt.team_id
        return super().render_change_form(request, context, *args, **kwargs)  # type: ignore[no-any-return]

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        if form.has_new_content():
            prompts.add_version(prompt=obj, content=form.content, created_by=request.user.get_username())
