"""What people do with a conversation: fork it, take something out of it, delete it, save it.

Each changes something by POST alone, after a page that asks, and leaves an audit line. Who may not, gets 403.
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

_PAGE = "admin/conversations/conversation/confirm.html"
_MOST_AT_ONCE = 20
_FORMATS = {"jsonl": ("application/jsonl", export.lines), "md": ("text/markdown; charset=utf-8", export.markdown)}


class ReasonForm(forms.Form):
    """Why; the audit log keeps it."""

    reason = forms.CharField(max_length=500, min_length=5)


def fork(request: HttpRequest, conversation: Conversation) -> HttpResponse:
    """A new conversation with the items up to and with `after`; all of them without it."""
    if not may(request, CONTRIBUTORS | OPERATORS, conversation):
        raise PermissionDenied
    after = request.POST.get("after") or request.GET.get("after") or None
    if request.method == "POST":
        try:
            made = services.fork_conversation(
                team_id=conversation.team_id, key_id=None, conversation_id=conversation.pk, after=after
            )
        except NotFound as gone:
            messages.error(request, gone.message)
            return HttpResponseRedirect(url_of(conversation))
        audit_row(request, made, "forked", after={"from": conversation.pk, "after": after or "the last item"})
        messages.success(request, f"This is the fork; it began as {conversation.pk}.")
        return HttpResponseRedirect(url_of(made))
    what = f"the items up to {after}" if after else "all of its items"
    lead = f"A new conversation begins with {what} and with the same metadata. This one stays as it is."
    words = {"title": "Fork this conversation?", "lead": lead, "button": "Fork", "hidden": {"after": after or ""}}
    return _ask(request, conversation, words)


def remove(request: HttpRequest, conversation: Conversation) -> HttpResponse:
    """Take the items named by `item` out of the conversation, or delete all of it where none is named."""
    if not may(request, LEADS | OPERATORS, conversation):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    items = given.getlist("item")[:_MOST_AT_ONCE]
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        return _remove(request, conversation, items, form.cleaned_data["reason"])
    if items:
        title = f"Delete {'this item' if len(items) == 1 else f'these {len(items)} items'}?"
        lead = f"No model reads {', '.join(items)} here again. Responses and forks that show it keep it."
    else:
        title = "Delete this conversation?"
        lead = "It is gone for good, with all items that no response and no fork shows."
    words = {"title": title, "lead": lead, "button": "Delete", "items": items, "form": form, "is_dangerous": True}
    return _ask(request, conversation, words)


def _remove(request: HttpRequest, conversation: Conversation, items: list[str], reason: str) -> HttpResponse:
    what: dict[str, Any] = {
        "team_id": conversation.team_id,
        "actor": actor(request),
        "conversation_id": conversation.pk,
        "request_id": getattr(request, "scope", {}).get("request_id", ""),
        "reason": reason,
    }
    try:
        for item_id in items:
            services.delete_item(item_id=item_id, **what)
        if not items:
            services.delete_conversation(**what)
    except ApiError as refused:
        messages.error(request, refused.message)
        return HttpResponseRedirect(url_of(conversation))
    if items:
        messages.success(request, f"Deleted: {', '.join(items)}.")
        return HttpResponseRedirect(url_of(conversation))
    messages.success(request, f"The conversation {conversation.pk} is deleted.")
    return HttpResponseRedirect(reverse("admin:conversations_conversation_changelist"))


def export_items(request: HttpRequest, conversation: Conversation) -> StreamingHttpResponse:
    """All of it as JSON Lines or as Markdown, a few items at a time."""
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
    """The page of a conversation."""
    return reverse("admin:conversations_conversation_change", args=[conversation.pk])


def _ask(request: HttpRequest, conversation: Conversation, words: dict[str, Any]) -> HttpResponse:
    context = {
        **admin.site.each_context(request),
        "opts": Conversation._meta,  # noqa: SLF001 - Django's documented API for models
        "original": conversation,
        "back": url_of(conversation),
        **words,
    }
    return TemplateResponse(request, _PAGE, context)
