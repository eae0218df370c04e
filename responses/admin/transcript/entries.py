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
from responses.admin.transcript.cards import Deed, Word, read_deed, with_row
from responses.admin.transcript.parts import MEDIA, Piece, data_in, read_part
from responses.models import Approval, Response, ToolCall
from responses.runs import selectors
from tenants.console.content_access import audit_read, hidden_notice, may_read
from tenants.models import ApiKey

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
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
class Message:
    """Something said. `in_context` False: a fragment that no model reads again."""

    kind: ClassVar[str] = "message"
    id: str
    key: str = ""
    role: str
    status: str
    phase: str
    pieces: Sequence[Piece]
    in_context: bool

    @property
    def size(self) -> str:
        """How much was said."""
        return size(sum(piece.weight for piece in self.pieces))

    def veiled(self) -> "Message":
        """For somebody who may not read it."""
        return replace(self, pieces=[piece.veiled() for piece in self.pieces])


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Reasoning, raw or summarised; `note` says what else there is of it."""

    kind: ClassVar[str] = "thinking"
    id: str
    key: str = ""
    status: str
    pieces: Sequence[Piece]
    note: str
    in_context: bool

    @property
    def size(self) -> str:
        """How much it is."""
        return size(sum(piece.weight for piece in self.pieces))

    def veiled(self) -> "Thinking":
        """For somebody who may not read it."""
        return replace(self, pieces=[piece.veiled() for piece in self.pieces])


Entry = Message | Thinking | Deed


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known beside the items: rows of calls by the key of the item that makes or answers them, what became of
    requests for approval by their ids, and the types of the team's files that are named."""

    calls: Mapping[UUID, ToolCall] = field(default_factory=dict)
    approvals: Mapping[str, Word] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


def beside(
    places: Sequence[Placement], rows: Sequence[ToolCall], *, team_id: str, owners: Mapping[UUID, str] | None = None
) -> Beside:
    """Gather it. `rows` are of the responses that these items belong to, the latest last; `owners` says of each item
    to which, where there are several."""
    items = [place.item for place in places]
    return Beside(
        calls=_calls(items, rows, owners or {}),
        approvals=_approvals(items, team_id),
        types=_types(items, team_id),
    )


def entries(places: Iterable[Placement], known: Beside, *, is_readable: bool) -> list[Entry]:
    """The items at these places, a call and what came back of it as one."""
    room = _MARKDOWN_CHARACTERS
    found: list[Entry] = []
    for place in places:
        entry = _entry(place.item, known, in_context=place.in_context)
        if not isinstance(entry, Deed):
            room -= sum(len(piece.text) for piece in entry.pieces)
            if room < 0:
                entry = replace(entry, pieces=[_plain(piece) for piece in entry.pieces])
        found.append(entry)
    paired = _paired(found)
    return paired if is_readable else [entry.veiled() for entry in paired]


def pieces_of(body: dict[str, Any]) -> Sequence[Piece]:
    """What an item is made of, in an order that stays."""
    match body["type"]:
        case "message":
            return _said(body["content"])
        case "reasoning":
            return _thought(body)
    return read_deed(body, in_context=True).pieces


def told_before(instructions: str | Sequence[dict[str, Any]] | None, *, is_readable: bool = True) -> list[Message]:
    """What a request told the model before its input: a text, or the messages of its prompt."""
    if not instructions:
        return []
    if isinstance(instructions, str):
        told = [{"id": "", "type": "message", "role": "instructions", "content": instructions}]
    else:
        told = [{"id": "", "type": "message", **body} for body in instructions]
    said = [_message(body, _said(body["content"]), in_context=True) for body in told]
    return said if is_readable else [message.veiled() for message in said]


def transcript(request: HttpRequest, response: Response, rows: Sequence[ToolCall]) -> dict[str, Any]:
    """What `transcript.html` shows of a response; `rows` are its calls, and before them those that its input answers.

    Notes in the audit log that it was read.
    """
    asked = selectors.own_items(response=response, section=Section.INPUT, limit=SHOWN_ITEMS)
    answered = selectors.own_items(response=response, section=Section.OUTPUT, limit=SHOWN_ITEMS)
    is_readable = may_read(request, response.team_id)
    if is_readable:
        audit_read(request, response, team_id=response.team_id)
    known = beside([*asked, *answered], rows, team_id=response.team_id)
    return {
        "content_hidden": "" if is_readable else hidden_notice(request, response.team_id),
        "earlier": selectors.count_earlier_items(response=response),
        "told_before": told_before(response.parameters.get("instructions"), is_readable=is_readable),
        "input": entries(asked, known, is_readable=is_readable),
        "input_hidden": asked[0].position if asked else 0,
        "output": entries(answered, known, is_readable=is_readable),
        "output_hidden": answered[0].position if answered else 0,
    }


# -- one item ----------------------------------------------------------------------------------------------------------


def _entry(item: Item, known: Beside, *, in_context: bool) -> Entry:
    body = item.body
    key = str(item.key)
    match body["type"]:
        case "message":
            return _message(body, _placed(_said(body["content"]), key, known), in_context=in_context, key=key)
        case "reasoning":
            return _thinking(body, _placed(_thought(body), key, known), in_context=in_context, key=key)
    deed = read_deed(body, in_context=in_context)
    asked = body["id"] if body["type"] == "mcp_approval_request" else body.get("approval_request_id")
    word = known.approvals.get(asked or "") if deed.kind == "call" else None
    deed = replace(deed, key=key, pieces=_placed(deed.pieces, key, known), approval=word)
    row = known.calls.get(item.key)
    return deed if row is None else with_row(deed, row)


def _message(body: dict[str, Any], pieces: Sequence[Piece], *, in_context: bool, key: str = "") -> Message:
    return Message(
        id=body["id"],
        key=key,
        role=body["role"],
        status=body.get("status") or "",
        phase=(body.get("phase") or "").replace("_", " "),
        pieces=pieces,
        in_context=in_context,
    )


def _said(content: str | Sequence[dict[str, Any]]) -> list[Piece]:
    return [Piece(kind="markdown", text=content)] if isinstance(content, str) else [*map(read_part, content)]


def _thought(body: dict[str, Any]) -> list[Piece]:
    """The reasoning itself, and in short what it was, where there are both."""
    raw, summary = (plain_text({"content": body.get(name)}) for name in ("content", "summary"))
    texts = [("", raw), ("In short", summary)] if raw and summary else [("", raw or summary)]
    return [Piece(kind="markdown", label=label, text=text) for label, text in texts if text]


def _thinking(body: dict[str, Any], pieces: Sequence[Piece], *, in_context: bool, key: str) -> Thinking:
    sealed = body.get("encrypted_content")
    return Thinking(
        id=body["id"],
        key=key,
        status=body.get("status") or "",
        pieces=pieces,
        note=f"Its sealed form has {size(len(sealed))}." if sealed else "",
        in_context=in_context,
    )


def _plain(piece: Piece) -> Piece:
    return replace(piece, kind="text") if piece.kind == "markdown" else piece


def _placed(pieces: Sequence[Piece], key: str, known: Beside) -> list[Piece]:
    """The pieces with the addresses under which they are here: images, files, and the rest of what is long."""
    return [_with_address(piece, key, number, known) for number, piece in enumerate(pieces)]


def _with_address(piece: Piece, key: str, number: int, known: Beside) -> Piece:
    if piece.kind not in MEDIA:
        return replace(piece, url=reverse("console:item_text", args=[key, number])) if piece.is_long else piece
    data = data_in(piece.source)
    if data is not None:
        url = reverse("console:item_media", args=[key, number])
        return replace(piece, url=url, is_picture=piece.kind == "image" and data.type in PICTURES)
    kind = known.types.get(piece.source)
    if kind is None:
        return piece
    url = reverse("console:file_content", args=[piece.source])
    return replace(piece, url=url, is_picture=piece.kind == "image" and kind in PICTURES)


# -- several items -----------------------------------------------------------------------------------------------------


def _paired(found: Sequence[Entry]) -> list[Entry]:
    """Each answer inside of its call, where the call comes before it."""
    told: list[Entry] = []
    waiting: dict[str, int] = {}
    for entry in found:
        if isinstance(entry, Deed) and entry.call_id:
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


def _approvals(items: Sequence[Item], team_id: str) -> dict[str, Word]:
    """What was said to the requests for approval among these items, and to those behind the calls."""
    asked = {item.id for item in items if item.type == "mcp_approval_request"}
    asked |= {item.body["approval_request_id"] for item in items if _was_asked_for(item)}
    if not asked:
        return {}
    rows = list(Approval.objects.filter(team_id=team_id, pk__in=asked))
    answered = [row.answered_in for row in rows if row.answered_in]
    by_key = dict(Response.objects.filter(pk__in=answered, team_id=team_id).values_list("pk", "api_key_id"))
    names = dict(ApiKey.objects.filter(pk__in=by_key.values()).values_list("pk", "name"))
    return {row.pk: Word.of(row, names.get(by_key.get(row.answered_in or "", ""), "")) for row in rows}


def _was_asked_for(item: Item) -> bool:
    return item.type == "mcp_call" and bool(item.body.get("approval_request_id"))


def _types(items: Sequence[Item], team_id: str) -> dict[str, str]:
    """The types of the files that are named as images or files, of those that are there."""
    named = {piece.source for item in items for piece in _media(item.body) if data_in(piece.source) is None}
    return storage.types(team_id=team_id, file_ids=named) if named else {}


def _media(body: dict[str, Any]) -> list[Piece]:
    """The images and files in an item. Reading every item twice is spared: few types have any."""
    content = body.get("content") if body["type"] == "message" else body.get("output")
    if isinstance(content, dict):
        return [piece for piece in pieces_of(body) if piece.kind in MEDIA]
    if not isinstance(content, list) or not any(part.get("file_id") for part in content):
        return []
    return [piece for piece in pieces_of(body) if piece.kind in MEDIA]
