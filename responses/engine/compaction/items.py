"""Compaction: what stays of a conversation when its past is made short, and how a model reads it from then on.

A compaction item holds, sealed, a summary and the items that are kept as they are: what users, developers and the
system said, settings, calls that still wait for their output. So the latest one alone says everything that came before
it, and whoever reads a long conversation may begin with it.
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
    from_wire,
)
from kernel.errors import InvalidEncryptedContent

# Of what a model can read, so much may be full before its past is made short, where the client names no number.
_FULL = 0.8
_UNKNOWN_WINDOW = 128_000
_INTRODUCTION = (
    "[The conversation up to here was shortened. What users and developers said stands above, word for word; what else "
    "was said and done, by you and by tools, is told in these notes. Go on from there.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContent:
    """What a compaction item holds out of sight."""

    summary: str
    kept: Sequence[dict[str, Any]] = ()

    def items(self) -> list[StoredItem]:
        """What is kept, as items."""
        return [from_wire(body) for body in self.kept]


class CompactionCipher(Protocol):
    """Makes what was compacted unreadable for everybody but the server itself."""

    def encrypt_compaction(self, compacted: CompactionContent) -> str:
        """What a compaction item holds, as its `encrypted_content`."""
        ...

    def decrypt_compaction(self, token: str) -> CompactionContent | None:
        """What was compacted; None where it was not sealed here, or not for this team."""
        ...


Decrypt = Callable[[str], CompactionContent | None]
"""Opens an `encrypted_content`; None where it was not sealed here, or not for this team."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What a request says of compaction: past how many tokens, or `at_once` and nothing else."""

    threshold: int | None = None
    at_once: bool = False

    def limit(self, context_window: int | None) -> int:
        """The tokens past which the conversation is made short."""
        return self.threshold or int((context_window or _UNKNOWN_WINDOW) * _FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedContext:
    """A conversation as a model reads it. `compacted` stands for all that was made short, its notes last; empty where
    nothing was."""

    compacted: Sequence[StoredItem] = ()
    rest: Sequence[StoredItem]

    @property
    def items(self) -> list[StoredItem]:
        """All of it."""
        return [*self.compacted, *self.rest]


def from_latest_compaction(items: Sequence[StoredItem], decrypt: Decrypt) -> CompactedContext:
    """The conversation from its latest compaction on.

    Of what stands before it, messages and settings stay: a client may put its rules in front of what it got, or send
    what was kept once more, which is not told twice. Everything else is in the notes.
    """
    latest = next((at for at in range(len(items) - 1, -1, -1) if isinstance(items[at], Compaction)), None)
    if latest is None:
        return CompactedContext(rest=items)
    item = items[latest]
    found = decrypt(item.encrypted_content) if isinstance(item, Compaction) and item.encrypted_content else None
    if found is None:
        raise unverified_content(item.id)
    before = [one for one in items[:latest] if _is_kept(one)]
    return CompactedContext(compacted=[*_merge(found.items(), before), _notes(found.summary)], rest=items[latest + 1 :])


def unverified_content(name: str | None, *, param: str = "input") -> InvalidEncryptedContent:
    """The refusal of what this server has not sealed for this team."""
    message = f"The encrypted content for item {name or 'without an id'} could not be verified."
    return InvalidEncryptedContent(message, param=param)


def kept_items(items: Iterable[StoredItem]) -> list[StoredItem]:
    """Those of the items that a compaction leaves as they are."""
    known = list(items)
    waiting = _open_calls(known)
    return [item for item in known if _is_kept(item) or any(item is call for call in waiting)]


def _is_kept(item: StoredItem) -> bool:
    return isinstance(item, InputMessage | ConfigurationUpdate | AdditionalTools)


def _open_calls(items: Iterable[StoredItem]) -> list[StoredItem]:
    """Calls without an output: it comes later, and has to find them."""
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
            case _ if (call_id := getattr(item, "call_id", None)) is not None:
                if (item.type or "").endswith("_call"):
                    waiting[call_id] = item
                else:
                    waiting.pop(call_id, None)
    return list(waiting.values())


def _merge(kept: Sequence[StoredItem], before: Sequence[StoredItem]) -> list[StoredItem]:
    """Both in their orders, what is in both once: what is shown no more stands where it stood among the others."""
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, one in enumerate(before):
        places[_identity(one.wire())].append(place)
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
    """The same for two items that say the same, whatever their ids."""
    return repr(sorted((name, repr(value)) for name, value in body.items() if name != "id"))


def _notes(summary: str) -> InputMessage:
    return InputMessage(role="developer", content=f"{_INTRODUCTION}\n\n{summary}")
