"""Actions on a conversation: fork, delete items or all of it, export.

Changes need a POST after a confirmation page and are recorded in the audit log. Users without the role get 403.
"""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import content_disposition_header

from conversations import export, selectors, services
from conversations.models import Conversation
from kernel.errors import ApiError, NotFound
from tenants.console.audited_admin import actor, audit_row
from tenants.console.content_access import audit_read, may_read
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS, may

_TEMPLATE = "admin/conversations/conversation/confirm.html"
# The ids are part of the URL of the confirmation page.
_MAX_ITEMS = 20
_FORMATS = {"jsonl": ("application/jsonl", export.lines), "md": ("text/markdown; charset=utf-8", export.markdown)}


class ReasonForm(forms.Form):
    """The reason for a deletion, recorded in the audit log."""

    reason = forms.CharField(max_length=500, min_length=5)


def fork(request: HttpRequest, conversation: Conversation) -> HttpResponse:
    """Copy the conversation into a new one: the items up to and including `after`, or all of them."""
    if not may(request, CONTRIBUTORS | OPERATORS, conversation):
        raise PermissionDenied
    after = request.POST.get("after") or request.GET.get("after") or None
    if request.method == "POST":
        try:
            # No API key created the fork: a user did.
            made = services.fork_conversation(
                team_id=conversation.team_id, key_id=None, conversation_id=conversation.pk, after=after
            )
        except NotFound as gone:
            messages.error(request, gone.message)
            return HttpResponseRedirect(url_of(conversation))
        audit_row(request, made, "forked", after={"from": conversation.pk, "after": after or "the last item"})
        messages.success(request, f"Forked from {conversation.pk}.")
        return HttpResponseRedirect(url_of(made))
    scope = f"the items up to {after}" if after else "all items"
    lead = f"Creates a new conversation with {scope} and the same metadata. This conversation does not change."
    context = {"title": "Fork this conversation?", "lead": lead, "button": "Fork", "hidden": {"after": after or ""}}
    return _confirmation_page(request, conversation, context)


def remove(request: HttpRequest, conversation: Conversation) -> HttpResponse:
    """Delete the items named by `item`, or the whole conversation if none is named."""
    if not may(request, LEADS | OPERATORS, conversation):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    items = given.getlist("item")[:_MAX_ITEMS]
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        return _remove(request, conversation, items, form.cleaned_data["reason"])
    if items:
        title = f"Delete {'this item' if len(items) == 1 else f'these {len(items)} items'}?"
        names = ", ".join(items)
        lead = f"Removes {names} from this conversation. Responses and forks that contain the same items keep them."
    else:
        title = "Delete this conversation?"
        lead = "Permanently deletes the conversation, and all items that no response or fork contains."
    context = {"title": title, "lead": lead, "button": "Delete", "items": items, "form": form, "is_dangerous": True}
    return _confirmation_page(request, conversation, context)


def _remove(request: HttpRequest, conversation: Conversation, items: list[str], reason: str) -> HttpResponse:
    arguments: dict[str, Any] = {
        "team_id": conversation.team_id,
        "actor": actor(request),
        "conversation_id": conversation.pk,
        # Connects the audit event with the log lines of this request.
        "request_id": getattr(request, "scope", {}).get("request_id", ""),
        "reason": reason,
    }
    try:
        for item_id in items:
            services.delete_item(item_id=item_id, **arguments)
        if not items:
            services.delete_conversation(**arguments)
    except ApiError as refused:
        messages.error(request, refused.message)
        return HttpResponseRedirect(url_of(conversation))
    if items:
        messages.success(request, f"Deleted: {', '.join(items)}.")
        return HttpResponseRedirect(url_of(conversation))
    messages.success(request, f"Deleted conversation {conversation.pk}.")
    return HttpResponseRedirect(reverse("admin:conversations_conversation_changelist"))


def export_items(request: HttpRequest, conversation: Conversation) -> StreamingHttpResponse:
    """Stream the whole conversation as JSON Lines or Markdown."""
    if not may_read(request, conversation.team_id):
        raise PermissionDenied
    audit_read(request, conversation, team_id=conversation.team_id)
    form = "md" if request.GET.get("format") == "md" else "jsonl"
    content_type, serialize = _FORMATS[form]
    name = content_disposition_header(as_attachment=True, filename=f"{conversation.pk}.{form}") or "attachment"
    headers = {"Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
    found = selectors.find_conversation(team_id=conversation.team_id, conversation_id=conversation.pk)
    return StreamingHttpResponse(serialize(found or conversation), content_type=content_type, headers=headers)


def url_of(conversation: Conversation) -> str:
    """Return the URL of a conversation's page."""
    return reverse("admin:conversations_conversation_change", args=[conversation.pk])


def _confirmation_page(request: HttpRequest, conversation: Conversation, context: dict[str, Any]) -> HttpResponse:
    page = {
        **admin.site.each_context(request),
        "opts": Conversation._meta,  # noqa: SLF001 - Django's documented API for models
        "original": conversation,
        "back": url_of(conversation),
        **context,
    }
    return TemplateResponse(request, _TEMPLATE, page)
