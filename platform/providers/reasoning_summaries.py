"""Summaries of reasoning for upstreams that send only raw reasoning."""

import re
from typing import Protocol

from engine.converter.chat_reasoning import ChatReasoning
from engine.events.types import Event, OutputItemDone

_SENTENCE = re.compile(r".+?(?:[.!?。！？](?=\s|$)|\n|$)", re.DOTALL)
# Number of sentences from the beginning of the reasoning that replace a summary, by OpenAI's styles.
_SENTENCES = {"concise": 1, "auto": 2, "detailed": 4}
_MAX_CHARACTERS = 600


class ReasoningSummarizer(Protocol):
    """Summarizes raw reasoning with a model."""

    async def summarize(self, reasoning: str, *, style: str) -> str | None:
        """Return a summary; None if no model is configured or the call failed."""
        ...


def first_sentences(reasoning: str, *, style: str) -> str:
    """Return the first sentences of the reasoning, as a summary without a model."""
    found = [sentence.strip() for sentence in _SENTENCE.findall(reasoning[: 4 * _MAX_CHARACTERS])]
    text = " ".join([sentence for sentence in found if sentence][: _SENTENCES.get(style, 2)])
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS].rstrip()}…"


async def summarize(
    item: ChatReasoning, done: OutputItemDone, *, style: str, summarizer: ReasoningSummarizer | None
) -> list[Event]:
    """Return the events that end a reasoning item, with a summary if the upstream has sent none."""
    reasoning = item.raw_text()
    if item.status != "completed" or not reasoning.strip() or any(part.kind == "summary_text" for part in item.parts):
        return [done]
    summary = await summarizer.summarize(reasoning, style=style) if summarizer is not None else None
    events = item.add_summary(summary or first_sentences(reasoning, style=style))
    return [*events, OutputItemDone(output_index=done.output_index, item=item.body())]
