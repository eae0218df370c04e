"""Entries of a transcript: messages, reasoning, and tool calls paired with their outputs.

Text from models and clients is rendered as sanitised Markdown (`console.markdown`) and nothing else. Viewers who may
not read content get the same entries with the content replaced by its size.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.urls import reverse

from console.widgets import size, state_words
from conversations.files import storage
from conversations.items import plain_text
from conversations.models import Item, Placement, Section
from responses.admin.transcript.cards import ApprovalResult, ToolCard, read_card, with_row
from responses.admin.transcript.parts import MEDIA, ItemPart, parse_data_url, read_part
from responses.models import Decision, DecisionState, Response, ToolCall
from responses.runs import selectors
from tenants.console.content_access import read_allowed
from tenants.console.viewer import Viewer
from tenants.models import ApiKey

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types that are shown as images. Other types are downloads, because they may contain scripts, as SVG does."""
# Maximum number of input items, and of output items. The latest items are shown.
SHOWN_ITEMS = 200
# Limits the time for rendering Markdown: after this many characters, a page shows plain text.
_MAX_MARKDOWN_CHARACTERS = 256 * 1024
# Prefix of `ToolCall.kind`, by item type, for items that do not contain the id of their call.
_TOOL_KINDS = {
    "mcp_call": "mcp",
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_interpreter",
    "image_generation_call": "image_generation",
}
_APPROVAL_LABELS = {
    DecisionState.ASKED.value: "Waiting for approval",
    DecisionState.GRANTED.value: "Approved",
    DecisionState.DENIED.value: "Denied",
    DecisionState.EXPIRED.value: "Expired",
    DecisionState.WITHDRAWN.value: "Withdrawn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEntry:
    """A message, or full or summarized reasoning, whose `kind` is thinking. `note` mentions encrypted reasoning.

    `in_context` is False for an incomplete item, which is not sent to a model again.
    """

    kind: str
    id: str
    key: str
    role: str
    status: str
    phase: str
    note: str
    parts: Sequence[ItemPart]
    in_context: bool

    @property
    def state(self) -> str:
        """The status in words."""
        return state_words(self.status)

    @property
    def size(self) -> str:
        return size(sum(part.weight for part in self.parts))

    def without_content(self) -> "TextEntry":
        """Return the entry for viewers who may not read content."""
        return replace(self, parts=[part.without_content() for part in self.parts])


Entry = TextEntry | ToolCard


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContext:
    """Data to which items refer.

    - `calls`: tool calls, by the key of the item that makes or answers the call.
    - `approvals`: by the id of the approval request.
    - `types`: content types of stored files, by file id.
    """

    calls: Mapping[UUID, ToolCall] = field(default_factory=dict)
    approvals: Mapping[str, ApprovalResult] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


def item_context(
    places: Sequence[Placement], rows: Sequence[ToolCall], *, team_id: str, owners: Mapping[UUID, str] | None = None
) -> ItemContext:
    """Load the data to which these items refer, with a fixed number of queries.

    `rows` are the calls of the responses to which the items belong, latest last. If there are several responses,
    `owners` maps item keys to response ids.
    """
    items = [place.item for place in places]
    calls, approvals = _calls(items, rows, owners or {}), _approvals(items, team_id)
    sources = {part.source for item in items for part in _media_parts(item.body) if parse_data_url(part.source) is None}
    types = storage.types(team_id=team_id, file_ids=sources) if sources else {}
    return ItemContext(calls=calls, approvals=approvals, types=types)


def entries(places: Iterable[Placement], context: ItemContext, *, is_readable: bool) -> list[Entry]:
    """Return the entries of these items. A call and a later output of the call become one entry."""
    remaining = _MAX_MARKDOWN_CHARACTERS
    found: list[Entry] = []
    open_calls: dict[str, int] = {}
    for place in places:
        entry = _entry(place.item, context, in_context=place.in_context)
        if isinstance(entry, TextEntry):
            # Cards do not count towards the limit, because their content is shown as plain text.
            remaining -= sum(len(part.text) for part in entry.parts)
            if remaining < 0:
                entry = replace(entry, parts=[part.as_plain_text() for part in entry.parts])
        elif entry.kind == "answer" and entry.call_id in open_calls:
            at = open_calls.pop(entry.call_id)
            found[at] = replace(found[at], answer=entry)  # type: ignore[arg-type]  # only calls are open
            continue
        elif entry.kind == "call" and entry.call_id:
            open_calls[entry.call_id] = len(found)
        found.append(entry)
    return found if is_readable else [entry.without_content() for entry in found]


def parts_of(body: dict[str, Any]) -> Sequence[ItemPart]:
    """Return the parts of an item. Their order is stable: addresses of content refer to parts by number."""
    match body:
        case {"type": "message", "content": str(text)}:
            return [ItemPart(kind="markdown", text=text)]
        case {"type": "message"}:
            return [read_part(part) for part in body["content"]]
        case {"type": "reasoning"}:
            raw, summary = (plain_text({"content": body.get(name)}) for name in ("content", "summary"))
            texts = [("", raw), ("Summary", summary)] if raw and summary else [("", raw or summary)]
            return [ItemPart(kind="markdown", label=label, text=text) for label, text in texts if text]
    return read_card(body, in_context=True).parts


def transcript(viewer: Viewer, response: Response, rows: Sequence[ToolCall]) -> dict[str, Any]:
    """Return the context of `transcript.html`, and record in the audit log that the content was read.

    `rows` are the calls that are answered by the input, followed by the response's own calls.
    """
    input_items = selectors.own_items(response=response, section=Section.INPUT, limit=SHOWN_ITEMS)
    output_items = selectors.own_items(response=response, section=Section.OUTPUT, limit=SHOWN_ITEMS)
    is_readable = read_allowed(viewer, response)
    context = item_context([*input_items, *output_items], rows, team_id=response.team_id)
    # Instructions are a text, or the messages of a prompt template. They are a parameter: unlike items, they have no id
    # and no row.
    instructions = response.parameters.get("instructions") or []
    if isinstance(instructions, str):
        instructions = [{"role": "instructions", "content": instructions}]
    messages = [_text_entry({"id": "", "type": "message", **body}, context) for body in instructions]
    return {
        "hidden_team": "" if is_readable else response.team_id,
        "earlier": selectors.count_earlier_items(response=response),
        "instructions": messages if is_readable else [message.without_content() for message in messages],
        "input": entries(input_items, context, is_readable=is_readable),
        "input_hidden": input_items[0].position if input_items else 0,
        "output": entries(output_items, context, is_readable=is_readable),
        "output_hidden": output_items[0].position if output_items else 0,
    }


# -- one item ----------------------------------------------------------------------------------------------------------


def _entry(item: Item, context: ItemContext, *, in_context: bool) -> Entry:
    body, key = item.body, str(item.key)
    if body["type"] in {"message", "reasoning"}:
        return _text_entry(body, context, in_context=in_context, key=key)
    card = read_card(body, in_context=in_context)
    request_id = body["id"] if body["type"] == "mcp_approval_request" else body.get("approval_request_id")
    approval = context.approvals.get(request_id or "") if card.kind == "call" else None
    card = replace(card, key=key, parts=_with_urls(card.parts, key, context), approval=approval)
    row = context.calls.get(item.key)
    return card if row is None else with_row(card, row)


def _text_entry(body: dict[str, Any], context: ItemContext, *, in_context: bool = True, key: str = "") -> TextEntry:
    encrypted = body.get("encrypted_content")
    return TextEntry(
        kind="message" if body["type"] == "message" else "thinking",
        id=body["id"],
        key=key,
        role=body.get("role") or "",
        status=body.get("status") or "",
        phase=(body.get("phase") or "").replace("_", " "),
        note=f"Encrypted content: {size(len(encrypted))}" if encrypted else "",
        parts=_with_urls(parts_of(body), key, context) if key else parts_of(body),
        in_context=in_context,
    )


def _with_urls(parts: Sequence[ItemPart], key: str, context: ItemContext) -> list[ItemPart]:
    """Add the URLs that serve images, files and the rest of long text."""
    found = []
    for number, part in enumerate(parts):
        url, media_type = "", ""
        if part.kind not in MEDIA:
            url = reverse("console:item_text", args=[key, number]) if part.is_long else ""
        elif (data := parse_data_url(part.source)) is not None:
            url, media_type = reverse("console:item_media", args=[key, number]), data.type
        elif part.source in context.types:
            url, media_type = reverse("console:file_content", args=[part.source]), context.types[part.source]
        is_image = part.kind == "image" and media_type in IMAGE_TYPES
        found.append(replace(part, url=url, is_image=is_image) if url else part)
    return found


# -- several items -----------------------------------------------------------------------------------------------------


def _calls(items: Sequence[Item], rows: Sequence[ToolCall], owners: Mapping[UUID, str]) -> dict[UUID, ToolCall]:
    """Return, by item key, the row of the call that the item makes or answers."""
    by_id = {row.call_id: row for row in rows}
    # Models choose the ids of calls and may use an id again in a later response, so a call of the same response is
    # preferred.
    by_owner = {(row.response_id, row.call_id): row for row in rows}
    found: dict[UUID, ToolCall] = {}
    own_kinds = {row.kind for row in rows} - set(_TOOL_KINDS.values())
    without_call_id: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for item in items:
        call_id = item.body.get("call_id") or ""
        row = by_owner.get((owners.get(item.key, ""), call_id)) or by_id.get(call_id)
        if row is not None:
            found[item.key] = row
        elif item.type in _TOOL_KINDS:
            kind = _TOOL_KINDS[item.type]
            if item.type == "mcp_call" and item.body["server_label"] in own_kinds:
                # A hosted tool without an item type of its own.
                kind = item.body["server_label"]
            without_call_id[owners.get(item.key, ""), kind].append(item)
    for (owner, kind), group in without_call_id.items():
        # Items of hosted tools have no call id. They have the order of their calls, so they can be paired if there are
        # as many items as calls. A refused call has no item.
        same = [
            row
            for row in rows
            if row.kind.startswith(kind) and row.status != "refused" and owner in {"", row.response_id}
        ]
        if len(same) == len(group):
            found.update((item.key, row) for item, row in zip(group, same, strict=True))
    return found


def _approvals(items: Sequence[Item], team_id: str) -> dict[str, ApprovalResult]:
    """Return the results of approval requests among these items, and of requests to which calls among them refer."""
    request_ids = {item.id for item in items if item.type == "mcp_approval_request"}
    request_ids |= {item.body.get("approval_request_id") for item in items if item.type == "mcp_call"}
    request_ids -= {None, ""}
    if not request_ids:
        return {}
    rows = list(Decision.objects.filter(team_id=team_id, pk__in=request_ids))
    answered = [row.answered_in for row in rows if row.answered_in]
    # The approval row names the response that answered it; that response names the API key.
    key_ids = dict(Response.objects.filter(pk__in=answered, team_id=team_id).values_list("pk", "api_key_id"))
    key_names = dict(ApiKey.objects.filter(pk__in=key_ids.values()).values_list("pk", "name"))
    return {
        row.pk: ApprovalResult(
            outcome=_APPROVAL_LABELS[row.state],
            at=row.answered_at,
            response_id=row.answered_in or "",
            key=key_names.get(key_ids.get(row.answered_in or "", ""), ""),
            # An API key that has answered in a request is named above.
            by="" if row.answered_in else row.decided_by,
        )
        for row in rows
    }


def _media_parts(body: dict[str, Any]) -> list[ItemPart]:
    # Only a few item types can have images or files. Building the parts of every item twice would take too long.
    content = body.get("content") if body["type"] == "message" else body.get("output")
    if isinstance(content, dict) or (isinstance(content, list) and any(part.get("file_id") for part in content)):
        return [part for part in parts_of(body) if part.kind in MEDIA]
    return []
