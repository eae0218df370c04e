# mypy: allow-subclassing-any
"""Prompts of teams: a page shows and edits the current version; saving something else makes the next one."""

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin import display, register
from django.core.exceptions import ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import TabularInline
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from console.widgets import copyable, json_block, when
from kernel.errors import BadRequest
from responses.models import PromptTemplate, PromptVersion
from responses.requests import prompts
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.content_access import audit_read, hidden_notice, may_read
from tenants.console.roles import LEADS, ByRole, TeamScoped, teams_for

_CONTENT = ("messages", "model", "parameters")
_EXAMPLE = [{"role": "developer", "content": "Answer {{customer}} in one sentence."}]


class JsonText(forms.JSONField):
    """JSON as people write it."""

    @override
    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _json_area(rows: int) -> UnfoldAdminTextareaWidget:
    return UnfoldAdminTextareaWidget(attrs={"rows": rows, "style": "font-family: monospace", "spellcheck": "false"})


class PromptForm(forms.ModelForm[PromptTemplate]):
    """A prompt and what its current version says."""

    current = forms.TypedChoiceField(
        coerce=int,
        label="Current version",
        widget=UnfoldAdminSelectWidget,
        help_text="The version of requests that name none.",
    )
    messages = JsonText(
        initial=_EXAMPLE,
        widget=_json_area(rows=12),
        help_text="A list of messages with role (system, developer, user, assistant) and content; {{name}} is a "
        "variable. Whatever is changed here becomes the next version.",
    )
    model = forms.CharField(
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="For requests that name none.",
    )
    parameters = JsonText(
        required=False,
        initial=dict,
        widget=_json_area(rows=4),
        help_text='For requests that do not set them, such as {"temperature": 0.2}.',
    )

    class Meta:
        model = PromptTemplate
        fields = ["team", "name", "current"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:  # noqa: SLF001 - documented
            self._show_current()
        else:
            self.fields.pop("current", None)

    def _show_current(self) -> None:
        versions = {version.number: version for version in self.instance.versions.order_by("number")}
        choices = [(number, f"Version {number}") for number in reversed(versions)]
        self.fields["current"].choices = choices  # type: ignore[attr-defined]  # the field's own type is lost in the dict
        shown = versions[self.instance.current]
        self.initial.update({name: getattr(shown, name) for name in _CONTENT})

    @override
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        cleaned["parameters"] = cleaned.get("parameters") or {}
        if "messages" in cleaned:
            values = {name: cleaned.get(name) or type(cleaned[name])() for name in _CONTENT}
            try:
                self.content = prompts.parse_prompt_content(values)
            except BadRequest as wrong:
                field = "messages" if (wrong.param or "").startswith("messages") else "parameters"
                raise ValidationError({field: wrong.message}) from wrong
        return cleaned

    def says_something_new(self) -> bool:
        """Whether what was entered is a version of its own."""
        return bool(set(_CONTENT) & set(self.changed_data)) or not self.instance.versions.exists()


class VersionInline(ByRole, TabularInline):
    """The versions of a prompt, newest first; none is ever changed."""

    model = PromptVersion
    extra = 0
    can_delete = False
    hide_title = True
    ordering = ["-number"]
    verbose_name_plural = "versions"
    fields = ["number", "said", "model", "set_parameters", "created", "created_by"]
    readonly_fields = fields

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Messages")
    def said(self, version: PromptVersion) -> Any:
        return json_block(version.messages)

    @display(description="Parameters")
    def set_parameters(self, version: PromptVersion) -> Any:
        return json_block(version.parameters)

    @display(description="Created")
    def created(self, version: PromptVersion) -> Any:
        return when(version.created_at)


@register(PromptTemplate)
class PromptAdmin(AuditedAdmin, TeamScoped):
    """A team lead writes the prompts of the team; everybody in it sees them."""

    managers = LEADS
    form = PromptForm
    actions = None
    list_display = ["name", "public_id", "team", "current", "version_count", "created"]
    list_select_related = ["team"]
    search_fields = ["name", "id"]
    ordering = ["name"]
    show_facets = admin.ShowFacets.NEVER
    inlines = [VersionInline]
    change_form_after_template = "admin/responses/prompttemplate/after.html"
    readonly_fields = ["public_id", "created"]

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        rows = rows.annotate(version_count=Count("versions"))
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may not read a prompt cannot change it."""
        return super().has_change_permission(request, obj) and (obj is None or may_read(request, obj.team_id))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.readonly_fields, "team"] if obj else self.readonly_fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        if obj is None:
            return [(None, {"fields": ["team", "name", *_CONTENT]})]
        facts: list[Any] = [("public_id", "created"), "team", "name", "current"]
        if not self.has_change_permission(request, obj):
            return [(None, {"fields": facts})]
        return [(None, {"fields": facts}), ("Next version", {"fields": list(_CONTENT)})]

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return self.inlines if obj and may_read(request, obj.team_id) else []

    @override
    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        prompt = kwargs.get("obj") or (args[3] if len(args) > 3 else None)
        if prompt is not None and may_read(request, prompt.team_id):
            audit_read(request, prompt, team_id=prompt.team_id)
        elif prompt is not None:
            context["hidden"] = hidden_notice(request, prompt.team_id)
        answer: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return answer

    @override
    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "team":
            kwargs["queryset"] = teams_for(request, self.managers)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        if form.says_something_new():
            prompts.add_version(prompt=obj, content=form.content, created_by=request.user.get_username())

    @display(description="ID")
    def public_id(self, prompt: PromptTemplate) -> SafeString:
        return copyable(prompt.pk)

    @display(description="Versions")
    def version_count(self, prompt: Any) -> int:
        return int(prompt.version_count)

    @display(description="Created", ordering="created_at")
    def created(self, prompt: PromptTemplate) -> Any:
        return when(prompt.created_at)
