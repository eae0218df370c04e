"""Citation markers: models cite the results of hosted searches by markers, which become annotations.

The model sees each result with a marker such as `【a1b2:3】`: the end of the search call's id and the number of the
result. In the answer, a marker is replaced by a link or removed, and an annotation is added. Markers of unknown sources
are removed. Markers are derived from the items alone, so they stay valid in later turns, responses and resumed runs.
"""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from conversations.items import CodeInterpreterCall, FileSearchCall, ShellCallOutput, StoredItem, WebSearchCall
from engine.events.types import (
    Body,
    ContentPartDone,
    Event,
    OutputItemDone,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
)
from engine.turn import LanguageModel, TurnRequest, TurnResult, TurnStream

HOW_TO_CITE = (
    "Each source starts with its marker, such as 【a1b2:1】. Where your answer uses a source, write its marker "
    "directly after the statement, exactly as given. Write no other markers and no list of sources."
)
"""Instruction for the model that accompanies search results."""
_OPENS = "【"
# Some models append `†` and a title, in the style of OpenAI's own markers.
_MARK = re.compile(r"【([0-9a-zA-Z]{4}:\d{1,3})(?:†[^】]{0,40})?】")
# Maximum length of text that is held back because it may become a marker.
_MAX_LENGTH = 60


def mark(item_id: str, number: int) -> str:
    """Return the marker of a search result. Numbers start at 1."""
    return f"【{_name(item_id, number)}】"


def _name(item_id: str, number: int) -> str:
    return f"{item_id[-4:]}:{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSource:
    """Source that can be cited. `shown` replaces its marker in the text."""

    shown: str
    annotation: Body

    def cited_at(self, start: int) -> Body:
        """Return the annotation for `shown` starting at `start`. Positions count characters."""
        if self.annotation["type"] == "file_citation":
            return {**self.annotation, "index": start}
        return {**self.annotation, "start_index": start, "end_index": start + len(self.shown)}


def sources(items: Iterable[StoredItem], *, links: bool) -> dict[str, CitedSource]:
    """Return the sources in these items by the names in their markers. `links`: replace markers of pages by links."""
    found: dict[str, CitedSource] = {}
    for item in items:
        match item:
            case FileSearchCall(id=str() as name, results=list() as passages):
                for number, passage in enumerate(passages, start=1):
                    if passage.file_id is None:
                        continue
                    citation = {"type": "file_citation", "file_id": passage.file_id, "filename": passage.filename}
                    found[_name(name, number)] = CitedSource(shown="", annotation=citation)
            case WebSearchCall(id=str() as name, results=list() as pages):
                for number, page in enumerate(pages, start=1):
                    citation = {"type": "url_citation", "url": page.url, "title": page.title or page.url}
                    shown = f" ([{urlsplit(page.url).hostname}]({page.url}))" if links else ""
                    found[_name(name, number)] = CitedSource(shown=shown, annotation=citation)
    return found


def written_files(items: Iterable[StoredItem]) -> dict[str, Body]:
    """Return the annotations for files written by code and commands in containers, by path."""
    found: dict[str, Body] = {}
    for item in items:
        for file in (item.files or ()) if isinstance(item, CodeInterpreterCall | ShellCallOutput) else ():
            # A later file replaces an earlier one with the same path.
            found.pop(file.path, None)
            if not file.gone:
                found[file.path] = {
                    "type": "container_file_citation",
                    "container_id": file.container_id,
                    "file_id": file.file_id,
                    "filename": file.path.rpartition("/")[2],
                }
    return found


def file_mentions(text: str, files: Mapping[str, Body]) -> list[Body]:
    """Return annotations for the mentions of files in a text, in text order."""
    # A file without a mention by path is searched by name, but only once, because a name may be an ordinary word.
    found: list[Body] = []
    for path, citation in files.items():
        places = list(re.finditer(rf"(?:sandbox:)?{re.escape(path)}(?![\w/]|\.\w)", text))
        if not places:
            places = list(re.finditer(rf"(?<![\w/.-]){re.escape(citation['filename'])}(?![\w/-]|\.\w)", text))[:1]
        found += [{**citation, "start_index": place.start(), "end_index": place.end()} for place in places]
    return sorted(found, key=lambda annotation: (annotation["start_index"], annotation["end_index"]))


def open_turn(model: LanguageModel, request: TurnRequest) -> TurnStream:
    """Start a turn whose markers are converted to annotations."""
    # With a JSON format, links would become part of the document.
    known = sources(request.items, links=request.sampling.response_format is None)
    files = written_files(request.items)
    stream = model.open(request)
    return _CitingStream(stream, known, files) if known or files else stream


@dataclass(slots=True)
class _CitedText:
    """Text part of an answer. `written` was emitted; `waiting` is held back because it may be part of a marker."""

    known: dict[str, CitedSource]
    written: str = ""
    waiting: str = ""
    annotations: list[Body] = field(default_factory=list)
    upstream_annotations: int = 0

    def feed(self, text: str, *, ends: bool = False) -> str:
        """Return the text that can be emitted now. `ends`: no more text follows."""
        self.waiting += text
        new = ""
        while self.waiting:
            before, opens, rest = self.waiting.partition(_OPENS)
            new += before
            self.waiting = opens + rest
            if not opens:
                break
            if found := _MARK.match(self.waiting):
                new += self._cite(found[1], at=len(self.written) + len(new))
                self.waiting = self.waiting[found.end() :]
            elif not ends and len(rest) < _MAX_LENGTH and "】" not in rest:
                break
            else:
                new += opens
                self.waiting = rest
        self.written += new
        return new

    def _cite(self, name: str, *, at: int) -> str:
        source = self.known.get(name)
        if source is None:
            return ""
        self.annotations.append(source.cited_at(at))
        return source.shown


class _CitingStream:
    """Turn stream whose events, items and result have citations instead of markers."""

    def __init__(self, stream: TurnStream, known: dict[str, CitedSource], files: Mapping[str, Body]) -> None:
        self._stream = stream
        self._known = known
        self._files = files
        self._texts: dict[tuple[str, int], _CitedText] = {}

    async def events(self) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._stream.events()) as turn:
            async for events in turn:
                yield self._convert_all(events)

    def result(self) -> TurnResult:
        return self._with_citations(self._stream.result())

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        events, result = self._stream.interrupt()
        return self._convert_all(events), self._with_citations(result)

    def _with_citations(self, result: TurnResult) -> TurnResult:
        return replace(result, items=[self._item(item) for item in result.items])

    def _convert_all(self, events: Sequence[Event]) -> list[Event]:
        return [new for event in events for new in self._convert(event)]

    def _convert(self, event: Event) -> list[Event]:
        match event:
            case OutputTextDelta():
                delta = self._text(event.item_id, event.content_index).feed(event.delta)
                return [replace(event, delta=delta)] if delta or event.logprobs else []
            case OutputTextAnnotationAdded():
                self._text(event.item_id, event.content_index).upstream_annotations += 1
            case OutputTextDone():
                return self._done(event)
            case ContentPartDone(part={"type": "output_text"}):
                return [replace(event, part=self._part(event.part, event.item_id, event.content_index))]
            case OutputItemDone(item={"type": "message"}):
                return [replace(event, item=self._item(event.item))]
        return [event]

    def _done(self, event: OutputTextDone) -> list[Event]:
        text = self._text(event.item_id, event.content_index)
        place = (event.item_id, event.output_index, event.content_index)
        rest = text.feed("", ends=True)
        text.annotations += file_mentions(text.written, self._files)
        deltas: list[Event] = [OutputTextDelta(*place, rest, [])] if rest else []
        # The upstream's own annotations were emitted before, hence the offset.
        numbered = enumerate(text.annotations, start=text.upstream_annotations)
        cited = [OutputTextAnnotationAdded(*place, number, annotation) for number, annotation in numbered]
        return [*deltas, *cited, replace(event, text=text.written)]

    def _text(self, item_id: str, content_index: int) -> _CitedText:
        return self._texts.setdefault((item_id, content_index), _CitedText(self._known))

    def _part(self, part: Body, item_id: str, content_index: int) -> Body:
        text = self._texts.get((item_id, content_index))
        if text is None or part["type"] != "output_text":
            return part
        return {**part, "text": text.written, "annotations": [*part["annotations"], *text.annotations]}

    def _item(self, item: Body) -> Body:
        if item["type"] != "message":
            return item
        parts = [self._part(part, item["id"], index) for index, part in enumerate(item["content"])]
        return {**item, "content": parts}
