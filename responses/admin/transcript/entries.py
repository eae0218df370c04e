"""Items as a page shows them: who said what, what was called, and what came back.

Nothing that a model or a client wrote is interpreted but as safe Markdown (`console.markdown`), and images come from
here or not at all. Who may not read it gets the same entries without a word of content.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse

from console.widgets import size
from conversations.files import storage
from conversations.items import plain_text
from conversations.models import Item, Placement, Section
from responses.admin.transcript.cards import ApprovalResult, ToolCard, read_card, with_row
from responses.admin.transcript.parts import MEDIA, ItemPart, parse_data_url, read_part
from responses.models import Approval, Response, ToolCall
from responses.runs import selectors
from tenants.console.content_access import audit_read, hidden_notice, may_read
from tenants.models import ApiKey

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What a page shows as an image; anything else is a file to save."""
SHOWN_ITEMS = 200
_MARKDOWN_CHARACTERS = 256 * 1024
_RUN_HERE = {
    "mcp_call": "mcp",
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_interpreter",
    "image_generation_call": "image_generation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEntry:
    """Something said. `in_context` False: a fragment that no model reads again."""

    kind: ClassVar[str] = "message"
    id: str
    key: str = ""
    role: str
    status: str
    phase: str
    parts: Sequence[ItemPart]
    in_context: bool

    @property
    def size(self) -> str:
        """How much was said."""
        return size(sum(part.weight for part in self.parts))

    def without_content(self) -> "MessageEntry":
        """For somebody who may not read it."""
        return replace(self, parts=[part.without_content() for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEntry:
    """Reasoning, raw or summarised; `note` says what else there is of it."""

    kind: ClassVar[str] = "thinking"
    id: str
    key: str = ""
    status: str
    parts: Sequence[ItemPart]
    note: str
    in_context: bool

    @property
    def size(self) -> str:
        """How much it is."""
        return size(sum(part.weight for part in self.parts))

    def without_content(self) -> "ReasoningEntry":
        """For somebody who may not read it."""
        return replace(self, parts=[part.without_content() for part in self.parts])


Entry = MessageEntry | ReasoningEntry | ToolCard


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContext:
    """What is known beside the items: rows of calls by the key of the item that makes or answers them, what became of
    requests for approval by their ids, and the types of the team's files that are named."""

    calls: Mapping[UUID, ToolCall] = field(default_factory=dict)
    approvals: Mapping[str, ApprovalResult] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


def item_context(
    places: Sequence[Placement], rows: Sequence[ToolCall], *, team_id: str, owners: Mapping[UUID, str] | None = None
) -> ItemContext:
    """Gather it. `rows` are of the responses that these items belong to, the latest last; `owners` says of each item
    to which, where there are several."""
    items = [place.item for place in places]
    return ItemContext(
        calls=_calls(items, rows, owners or {}),
        approvals=_approvals(items, team_id),
        types=_types(items, team_id),
    )


def entries(places: Iterable[Placement], known: ItemContext, *, is_readable: bool) -> list[Entry]:
    """The items at these places, a call and what came back of it as one."""
    room = _MARKDOWN_CHARACTERS
    found: list[Entry] = []
    for place in places:
        entry = _entry(place.item, known, in_context=place.in_context)
        if not isinstance(entry, ToolCard):
            room -= sum(len(part.text) for part in entry.parts)
            if room < 0:
                entry = replace(entry, parts=[_plain(part) for part in entry.parts])
        found.append(entry)
    paired = _paired(found)
    return paired if is_readable else [entry.without_content() for entry in paired]


def parts_of(body: dict[str, Any]) -> Sequence[ItemPart]:
    """What an item is made of, in an order that stays."""
    match body["type"]:
        case "message":
            return _content_parts(body["content"])
        case "reasoning":
            return _reasoning_parts(body)
    return read_card(body, in_context=True).parts


def instruction_messages(
    instructions: str | Sequence[dict[str, Any]] | None, *, is_readable: bool = True
) -> list[MessageEntry]:
    """What a request told the model before its input: a text, or the messages of its prompt."""
    if not instructions:
        return []
    if isinstance(instructions, str):
        told = [{"id": "", "type": "message", "role": "instructions", "content": instructions}]
    else:
        told = [{"id": "", "type": "message", **body} for body in instructions]
    said = [_message(body, _content_parts(body["content"]), in_context=True) for body in told]
    return said if is_readable else [message.without_content() for message in said]


def transcript(request: HttpRequest, response: Response, rows: Sequence[ToolCall]) -> dict[str, Any]:
    """What `transcript.html` shows of a response; `rows` are its calls, and before them those that its input answers.

    Notes in the audit log that it was read.
    """
    asked = selectors.own_items(response=response, section=Section.INPUT, limit=SHOWN_ITEMS)
    answered = selectors.own_items(response=response, section=Section.OUTPUT, limit=SHOWN_ITEMS)
    is_readable = may_read(request, response.team_id)
    if is_readable:
        audit_read(request, response, team_id=response.team_id)
    known = item_context([*asked, *answered], rows, team_id=response.team_id)
    return {
        "content_hidden": "" if is_readable else hidden_notice(request, response.team_id),
        "earlier": selectors.count_earlier_items(response=response),
        "instructions": instruction_messages(response.parameters.get("instructions"), is_readable=is_readable),
        "input": entries(asked, known, is_readable=is_readable),
        "input_hidden": asked[0].position if asked else 0,
        "output": entries(answered, known, is_readable=is_readable),
        "output_hidden": answered[0].position if answered else 0,
    }


# -- one item ----------------------------------------------------------------------------------------------------------


def _entry(item: Item, known: ItemContext, *, in_context: bool) -> Entry:
    body = item.body
    key = str(item.key)
    match body["type"]:
        case "message":
            return _message(
                body, _with_urls(_content_parts(body["content"]), key, known), in_context=in_context, key=key
            )
        case "reasoning":
            return _reasoning_entry(
                body, _with_urls(_reasoning_parts(body), key, known), in_context=in_context, key=key
            )
    card = read_card(body, in_context=in_context)
    asked = body["id"] if body["type"] == "mcp_approval_request" else body.get("approval_request_id")
    word = known.approvals.get(asked or "") if card.kind == "call" else None
    card = replace(card, key=key, parts=_with_urls(card.parts, key, known), approval=word)
    row = known.calls.get(item.key)
    return card if row is None else with_row(card, row)


def _message(body: dict[str, Any], parts: Sequence[ItemPart], *, in_context: bool, key: str = "") -> MessageEntry:
    return MessageEntry(
        id=body["id"],
        key=key,
        role=body["role"],
        status=body.get("status") or "",
        phase=(body.get("phase") or "").replace("_", " "),
        parts=parts,
        in_context=in_context,
    )


def _content_parts(content: str | Sequence[dict[str, Any]]) -> list[ItemPart]:
    return [ItemPart(kind="markdown", text=content)] if isinstance(content, str) else [*map(read_part, content)]


def _reasoning_parts(body: dict[str, Any]) -> list[ItemPart]:
    """The reasoning itself, and in short what it was, where there are both."""
    raw, summary = (plain_text({"content": body.get(name)}) for name in ("content", "summary"))
    texts = [("", raw), ("In short", summary)] if raw and summary else [("", raw or summary)]
    return [ItemPart(kind="markdown", label=label, text=text) for label, text in texts if text]


def _reasoning_entry(body: dict[str, Any], parts: Sequence[ItemPart], *, in_context: bool, key: str) -> ReasoningEntry:
    sealed = body.get("encrypted_content")
    return ReasoningEntry(
        id=body["id"],
        key=key,
        status=body.get("status") or "",
        parts=parts,
        note=f"Its sealed form has {size(len(sealed))}." if sealed else "",
        in_context=in_context,
    )


def _plain(part: ItemPart) -> ItemPart:
    return replace(part, kind="text") if part.kind == "markdown" else part


def _with_urls(parts: Sequence[ItemPart], key: str, known: ItemContext) -> list[ItemPart]:
    """The pieces with the addresses under which they are here: images, files, and the rest of what is long."""
    return [_with_url(part, key, number, known) for number, part in enumerate(parts)]


def _with_url(part: ItemPart, key: str, number: int, known: ItemContext) -> ItemPart:
    if part.kind not in MEDIA:
        return replace(part, url=reverse("console:item_text", args=[key, number])) if part.is_long else part
    data = parse_data_url(part.source)
    if data is not None:
        url = reverse("console:item_media", args=[key, number])
        return replace(part, url=url, is_image=part.kind == "image" and data.type in IMAGE_TYPES)
    kind = known.types.get(part.source)
    if kind is None:
        return part
    url = reverse("console:file_content", args=[part.source])
    return replace(part, url=url, is_image=part.kind == "image" and kind in IMAGE_TYPES)


# -- several items -----------------------------------------------------------------------------------------------------


def _paired(found: Sequence[Entry]) -> list[Entry]:
    """Each answer inside of its call, where the call comes before it."""
    told: list[Entry] = []
    waiting: dict[str, int] = {}
    for entry in found:
        if isinstance(entry, ToolCard) and entry.call_id:
            at = waiting.pop(entry.call_id, None) if entry.kind == "answer" else None
            if at is not None:
                told[at] = replace(told[at], answer=entry)  # type: ignore[arg-type]  # only calls are waiting
                continue
            if entry.kind == "call":
                waiting[entry.call_id] = len(told)
        told.append(entry)
    return told


def _calls(items: Sequence[Item], rows: Sequence[ToolCall], owners: Mapping[UUID, str]) -> dict[UUID, ToolCall]:
    """The row of each item that makes or answers a call."""
    by_id = {row.call_id: row for row in rows}
    by_owner = {(row.response_id, row.call_id): row for row in rows}
    found: dict[UUID, ToolCall] = {}
    ours: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for item in items:
        call_id = item.body.get("call_id") or ""
        row = by_owner.get((owners.get(item.key, ""), call_id)) or by_id.get(call_id)
        if row is not None:
            found[item.key] = row
        elif item.type in _RUN_HERE:
            ours[owners.get(item.key, ""), item.type].append(item)
    for (owner, kind), made in ours.items():
        # Items of calls that we make do not name them. They come in the order of the calls.
        same = [
            row
            for row in rows
            if row.kind.startswith(_RUN_HERE[kind]) and row.status != "refused" and owner in {"", row.response_id}
        ]
        if len(same) == len(made):
            found.update((item.key, row) for item, row in zip(made, same, strict=True))
    return found


def _approvals(items: Sequence[Item], team_id: str) -> dict[str, ApprovalResult]:
    """What was said to the requests for approval among these items, and to those behind the calls."""
    asked = {item.id for item in items if item.type == "mcp_approval_request"}
    asked |= {item.body["approval_request_id"] for item in items if _was_asked_for(item)}
    if not asked:
        return {}
    rows = list(Approval.objects.filter(team_id=team_id, pk__in=asked))
    answered = [row.answered_in for row in rows if row.answered_in]
    by_key = dict(Response.objects.filter(pk__in=answered, team_id=team_id).values_list("pk", "api_key_id"))
    names = dict(ApiKey.objects.filter(pk__in=by_key.values()).values_list("pk", "name"))
    return {row.pk: ApprovalResult.of(row, names.get(by_key.get(row.answered_in or "", ""), "")) for row in rows}


def _was_asked_for(item: Item) -> bool:
    return item.type == "mcp_call" and bool(item.body.get("approval_request_id"))


def _types(items: Sequence[Item], team_id: str) -> dict[str, str]:
    """The types of the files that are named as images or files, of those that are there."""
    named = {part.source for item in items for part in _media(item.body) if parse_data_url(part.source) is None}
    return storage.types(team_id=team_id, file_ids=named) if named else {}


def _media(body: dict[str, Any]) -> list[ItemPart]:
    """The images and files in an item. Reading every item twice is spared: few types have any."""
    content = body.get("content") if body["type"] == "message" else body.get("output")
    if isinstance(content, dict):
        return [part for part in parts_of(body) if part.kind in MEDIA]
    if not isinstance(content, list) or not any(part.get("file_id") for part in content):
        return []
    return [part for part in parts_of(body) if part.kind in MEDIA]
