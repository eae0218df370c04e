"""Texts of several upstream events that arrived together, joined to one event.

A client gets one delta for them, which takes less than half of the CPU. It is done while the event loop is late: the
texts are read at the same moment in any case.
"""

from collections.abc import Callable, Iterable, Sequence

from engine.events.types import Body

_TEXT_FIELDS = frozenset({"content", "reasoning_content", "reasoning"})
_TEXT_DELTAS = frozenset({"response.output_text.delta", "response.reasoning_text.delta", "response.reasoning.delta"})

Text = tuple[tuple[object, ...], str]
"""The text of an event that contains nothing else, after its place: texts with the same place may be joined."""
Reader = Callable[[Body], Text | None]
Writer = Callable[[Body, str], Body]


def joined(events: Iterable[Body], *, read: Reader, write: Writer) -> Sequence[tuple[Body, int]]:
    """Return the events, each with the number of the given events whose texts it has.

    `read` returns the text of an event that may be joined. `write` returns a copy of an event with another text.
    """
    found: list[tuple[Body, int]] = []
    first: Body = {}
    place: tuple[object, ...] | None = None
    texts: list[str] = []

    def end() -> None:
        if texts:
            found.append((first if len(texts) == 1 else write(first, "".join(texts)), len(texts)))
            texts.clear()

    for event in events:
        readable = read(event)
        if readable is None:
            end()
            place = None
            found.append((event, 1))
            continue
        its_place, text = readable
        if its_place != place:
            end()
            first, place = event, its_place
        texts.append(text)
    end()
    return found


def text_of_chunk(event: Body) -> Text | None:
    """Return the text of a chunk of a chat completion."""
    choices = event.get("choices")
    if type(choices) is not list or len(choices) != 1 or event.get("usage") or event.get("x_groq"):
        return None
    choice = choices[0]
    delta = choice.get("delta") if type(choice) is dict else None
    # The converter reads these fields of a choice in addition to its delta.
    if type(delta) is not dict or (
        choice.get("finish_reason") or choice.get("logprobs") or choice.get("error") or choice.get("usage")
    ):
        return None
    filled = delta if len(delta) == 1 else {name: value for name, value in delta.items() if value and name != "role"}
    if len(filled) != 1:
        return None
    ((field, text),) = filled.items()
    if type(text) is not str or field not in _TEXT_FIELDS:
        return None
    return (choice.get("index"), field, event.get("service_tier")), text


def chunk_with_text(event: Body, text: str) -> Body:
    """Return a copy of a chunk with a text instead of its own."""
    (choice,) = event["choices"]
    delta = choice["delta"]
    field = next(name for name in delta if name in _TEXT_FIELDS and (delta[name] or len(delta) == 1))
    return {**event, "choices": [{**choice, "delta": {field: text}}]}


def text_of_event(event: Body) -> Text | None:
    """Return the text of an event of the Responses API."""
    kind, delta = event.get("type"), event.get("delta")
    if type(kind) is not str or kind not in _TEXT_DELTAS or type(delta) is not str or event.get("logprobs"):
        return None
    return (kind, event.get("item_id"), event.get("output_index"), event.get("content_index")), delta


def event_with_text(event: Body, text: str) -> Body:
    """Return a copy of an event with a text instead of its own."""
    return {**event, "delta": text}
