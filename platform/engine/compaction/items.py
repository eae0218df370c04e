"""Compaction items: their content, and the conversation as the model reads it after a compaction.

A compaction item contains, encrypted, a summary and the items that are kept verbatim: messages of users, developers and
the system, settings, and calls without an output. The latest compaction item therefore replaces everything before it,
so a reader of a long conversation can start there.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conversations.items import (
    AdditionalTools,
    Compaction,
    ConfigurationUpdate,
    InputMessage,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    StoredItem,
    ToolSearchCall,
    readable_items,
)
from core.errors import BadRequest, InvalidEncryptedContent
from core.records import record

# Part of the context window that the input may fill before a compaction, unless the client sets a threshold. The rest
# is for the answer and for the notes.
_DEFAULT_SHARE = 0.8
_UNKNOWN_WINDOW = 128_000
_INTRODUCTION = (
    "[The conversation up to here was shortened. Messages of users and developers are kept above, word for word; these "
    "notes summarize everything else that you and the tools did. Continue from there.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContent:
    """Encrypted content of a compaction item: the summary and the items that are kept verbatim."""

    summary: str
    kept: Sequence[dict[str, Any]] = ()

    def items(self) -> list[StoredItem]:
        """Return the kept items."""
        return readable_items(self.kept)


class CompactionCipher(Protocol):
    """Encrypts compaction content so that only this server can read it."""

    def encrypt_compaction(self, compacted: CompactionContent) -> str:
        """Return the `encrypted_content` of a compaction item."""
        ...

    def decrypt_compaction(self, token: str) -> CompactionContent | None:
        """Return the content; None if it was not encrypted by this server for this team."""
        ...


Decrypt = Callable[[str], CompactionContent | None]
"""Decrypts an `encrypted_content`; None if it was not encrypted by this server for this team."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """Compaction settings of a request: a threshold in tokens, or `at_once` for a request that only compacts."""

    threshold: int | None = None
    at_once: bool = False

    def limit(self, context_window: int | None) -> int:
        """Return the number of input tokens above which the conversation is compacted."""
        return self.threshold or int((context_window or _UNKNOWN_WINDOW) * _DEFAULT_SHARE)


@record
class CompactedContext:
    """Conversation as a model reads it.

    `compacted` replaces the compacted part, with the notes as its last item; empty if nothing was compacted.
    """

    compacted: Sequence[StoredItem] = ()
    rest: Sequence[StoredItem]

    @property
    def items(self) -> list[StoredItem]:
        """Return all items."""
        return [*self.compacted, *self.rest]


def from_latest_compaction(items: Sequence[StoredItem], decrypt: Decrypt) -> CompactedContext:
    """Return the conversation after its latest compaction, as a model reads it. Raises InvalidEncryptedContent.

    The compaction item replaces all items before it, except messages and settings that it does not contain: a client
    may put its own rules in front of it, or repeat kept items.
    """
    latest = next((at for at in range(len(items) - 1, -1, -1) if isinstance(items[at], Compaction)), None)
    if latest is None:
        return CompactedContext(rest=items)
    item = items[latest]
    found = decrypt(item.encrypted_content) if isinstance(item, Compaction) and item.encrypted_content else None
    if found is None:
        raise unverified_content(item.id)
    before = [earlier for earlier in items[:latest] if _is_kept(earlier)]
    notes = InputMessage(role="developer", content=f"{_INTRODUCTION}\n\n{found.summary}")
    return CompactedContext(compacted=[*_merge(found.items(), before), notes], rest=items[latest + 1 :])


def unverified_content(name: str | None, *, param: str = "input") -> BadRequest:
    """Return the error for content that this server did not encrypt for this team."""
    message = f"The encrypted content for item {name or 'without an id'} could not be verified."
    return InvalidEncryptedContent(message, param=param)


def kept_items(items: Iterable[StoredItem]) -> list[StoredItem]:
    """Return the items that a compaction keeps verbatim."""
    known = list(items)
    waiting = _open_calls(known)
    return [item for item in known if _is_kept(item) or any(item is call for call in waiting)]


def _is_kept(item: StoredItem) -> bool:
    return isinstance(item, InputMessage | ConfigurationUpdate | AdditionalTools)


def _open_calls(items: Iterable[StoredItem]) -> list[StoredItem]:
    # Calls without an output are kept, since their output comes later and has to refer to them.
    waiting: dict[str, StoredItem] = {}
    for item in items:
        match item:
            case McpApprovalRequest(id=str(name)):
                waiting[name] = item
            case McpApprovalResponse():
                waiting.pop(item.approval_request_id, None)
            case LocalShellCallOutput(id=str(name)):
                waiting.pop(name, None)
            case ToolSearchCall(execution="server"):
                continue
            # Items of other types may have an additional field of this name.
            case _ if "call_id" in type(item).model_fields and (call_id := getattr(item, "call_id", None)) is not None:
                if (item.type or "").endswith("_call"):
                    waiting[call_id] = item
                else:
                    waiting.pop(call_id, None)
    return list(waiting.values())


def _merge(kept: Sequence[StoredItem], before: Sequence[StoredItem]) -> list[StoredItem]:
    # Merges both sequences in order, with common items once. A kept item that the client no longer sends stays at its
    # position among the others.
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, earlier in enumerate(before):
        places[_identity(earlier.wire())].append(place)
    merged: list[StoredItem] = []
    taken = 0
    for item in kept:
        found = places.get(_identity(item.wire()))
        if found is None:
            merged.append(item)
        elif found and (place := found.popleft()) >= taken:
            merged += before[taken : place + 1]
            taken = place + 1
    return [*merged, *before[taken:]]


def _identity(body: dict[str, Any]) -> str:
    # Equal for items with equal content; ids differ when a client sends an item again.
    return repr(sorted((name, repr(value)) for name, value in body.items() if name != "id"))
