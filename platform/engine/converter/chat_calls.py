"""Assembly of calls from their pieces in chat-completions answers.

Upstreams identify the call of a piece by its index, by its id, or by neither. Some number the pieces instead of the
calls, some give each piece a new id, and some repeat a call when it is complete. In all of these cases, a call keeps
its arguments and appears only once.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from engine.converter.calls import CallSegment, arguments_text, is_object


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """Piece of a call in one delta. `index` is the upstream's index if `numbered`, or else the position in the list.

    `native`: a call of a custom tool, whose input is not JSON. `source` is the object that it was read from.
    """

    index: Any
    numbered: bool
    id: str | None
    name: str | None
    arguments: str | None
    native: bool
    source: Mapping[str, Any]

    @property
    def is_empty(self) -> bool:
        """True if the piece has neither a name nor arguments."""
        return not self.name and not self.arguments

    @property
    def is_anonymous(self) -> bool:
        """True if the piece has neither an id nor a name."""
        return self.id is None and self.name is None

    @property
    def opens_object(self) -> bool:
        """True if the arguments begin like a JSON object."""
        return (self.arguments or "").lstrip().startswith("{")


def read_calls(delta: Mapping[str, Any]) -> Iterator[CallPiece]:
    """Yield the pieces of calls in a delta."""
    if calls := delta.get("tool_calls"):
        for position, call in enumerate([calls] if isinstance(calls, dict) else calls):
            # Some servers send an empty entry beside text.
            if call:
                yield _read_call(call, position)
    # The format of function calls before `tool_calls`. Some servers send both.
    elif legacy := delta.get("function_call"):
        yield _read_call({"index": 0, "function": legacy}, 0)


def _read_call(call: Mapping[str, Any], position: int) -> CallPiece:
    index, upstream_id = call.get("index"), call.get("id") or None
    # Upstreams with native custom tools nest the call under `custom`, with `input` instead of `arguments`.
    native = call.get("type") == "custom" or "custom" in call
    # Some servers do not nest the function.
    function = call.get("custom" if native else "function") or call
    return CallPiece(
        index=position if index is None else index,
        numbered=index is not None,
        id=None if upstream_id is None else str(upstream_id),
        name=function.get("name") or None,
        arguments=arguments_text(function.get("input" if native else "arguments")) or None,
        native=native,
        source=call,
    )


class CallJoiner:
    """Finds the call that a piece continues."""

    def __init__(self) -> None:
        self._by_index: dict[Any, CallSegment] = {}
        self._by_id: dict[str, CallSegment] = {}
        self._last: CallSegment | None = None
        # Empty pieces of calls that have not begun.
        self._announced: dict[Any, CallPiece] = {}
        self._ignored_indexes: set[Any] = set()
        self._ignored_ids: set[str] = set()
        self._ignores_last = False

    @property
    def has_ignored(self) -> bool:
        """True if there was a call beyond the allowed number."""
        return bool(self._ignored_indexes)

    def ignores(self, piece: CallPiece) -> bool:
        """Return True if the piece belongs to a call that is ignored."""
        if piece.id is not None and piece.id in self._by_id:
            return False
        if piece.is_anonymous and not piece.numbered:
            return self._ignores_last
        return piece.id in self._ignored_ids or piece.index in self._ignored_indexes

    def ignore(self, piece: CallPiece) -> None:
        """Ignore the call that begins with this piece."""
        self._ignored_indexes.add(piece.index)
        if piece.id is not None:
            self._ignored_ids.add(piece.id)
        self._ignores_last = True

    def announce(self, piece: CallPiece) -> None:
        """Keep the id of a call that may begin with a later piece."""
        self._announced[piece.index] = piece

    def announced(self, piece: CallPiece) -> CallPiece:
        """Return the piece with the data that was announced for its call."""
        earlier = self._announced.pop(piece.index, None)
        if earlier is None or (piece.id is not None and earlier.id is not None and piece.id != earlier.id):
            return piece
        source = {**earlier.source, **piece.source}
        return replace(piece, id=piece.id or earlier.id, native=piece.native or earlier.native, source=source)

    def add(self, piece: CallPiece, call: CallSegment) -> None:
        """Record the call that begins with this piece."""
        self._by_index[piece.index] = self._last = call
        if piece.id is not None:
            # Some upstreams give several calls the same id.
            self._by_id[piece.id] = call
        self._ignores_last = False

    def find(self, piece: CallPiece) -> CallSegment | None:
        """Return the call that the piece continues or repeats; None if it begins another."""
        call = self._candidate(piece)
        if call is not None:
            self._last, self._ignores_last = call, False
            self._by_index.setdefault(piece.index, call)
            if piece.id is not None:
                self._by_id.setdefault(piece.id, call)
        return call

    def _candidate(self, piece: CallPiece) -> CallSegment | None:
        known = self._by_id.get(piece.id) if piece.id is not None else None
        if known is not None:
            at_another_index = piece.numbered and self._by_index.get(piece.index) is not known
            return None if _begins_another(known, piece, at_another_index=at_another_index) else known
        if piece.is_anonymous and not piece.numbered:
            return self._last
        known = self._by_index.get(piece.index)
        if known is None:
            # The index numbers the pieces, so the last call goes on until it is complete.
            last = self._last
            goes_on = last is not None and piece.name is None and bool(last.arguments) and not _is_whole(last)
            return last if goes_on and (piece.id is None or not piece.opens_object) else None
        if piece.id is not None and known.upstream_id is not None:
            # The upstream gives each piece a new id: no call begins in the middle of the arguments of another call.
            return known if _is_middle(known, piece) else None
        is_another = piece.name and piece.arguments and _is_whole(known)
        return None if is_another and not (known.upstream_id and _repeats(known, piece)) else known


def new_arguments(call: CallSegment, piece: CallPiece) -> str | None:
    """Return the arguments that a piece adds to its call."""
    if piece.native or not piece.arguments or not call.arguments or not piece.opens_object:
        return piece.arguments
    # Some upstreams repeat the whole call at its end, others repeat the name and all arguments so far in each piece.
    if piece.name == call.name and piece.arguments.startswith(call.arguments[0]):
        written = "".join(call.arguments)
        if piece.arguments.startswith(written):
            return piece.arguments[len(written) :]
    return None if _is_whole(call) and _repeats(call, piece) else piece.arguments


_GLUED = re.compile(r"\}\s*(?=\{)")


def split_glued(call: CallSegment, text: str) -> tuple[str, str]:
    """Split arguments into the part that belongs to a call, and the rest, which belongs to another call.

    Some servers put the arguments of several calls of a function into one, such as `{"a":1}{"a":2}`.
    """
    if text.lstrip().startswith("{") and call.arguments and _is_whole(call):
        return "", text
    for border in _GLUED.finditer(text):
        head = text[: border.end()]
        if is_object("".join(call.arguments) + head):
            return head, text[border.end() :]
    return text, ""


def _begins_another(known: CallSegment, piece: CallPiece, *, at_another_index: bool) -> bool:
    # Some upstreams use the name of the function as the id, so that parallel calls have the same one.
    if not piece.name or not piece.opens_object or not _is_whole(known):
        return False
    return at_another_index and piece.id == piece.name if _repeats(known, piece) else True


def _repeats(known: CallSegment, piece: CallPiece) -> bool:
    written = "".join(known.arguments)
    if piece.arguments == written or not piece.arguments:
        return piece.arguments == written
    # Some servers parse the arguments and write them again, with other white space.
    try:
        return bool(orjson.loads(piece.arguments) == orjson.loads(written))
    except orjson.JSONDecodeError:
        return False


def _is_middle(known: CallSegment, piece: CallPiece) -> bool:
    if not piece.arguments or _is_whole(known):
        return False
    return piece.name is None or (piece.name == known.name and bool(known.arguments) and not piece.opens_object)


def _is_whole(call: CallSegment) -> bool:
    return call.may_be_whole and is_object("".join(call.arguments))
