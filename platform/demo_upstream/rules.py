"""The rules of the demo: a table of small functions, of which the first with an answer wins.

`RULES` determine the answer, `STYLES` modify its text according to instructions such as "answer in capitals". To add a
rule, write a function from a conversation to a reply or None and add it to the table. Names of rules are shown in
reasoning.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from demo_upstream import arithmetic, facts, schema, tools
from demo_upstream.conversation import DemoConversation
from demo_upstream.errors import DemoApiError
from demo_upstream.schema import Fill, UnfillableError
from demo_upstream.text_values import TextValues
from demo_upstream.tools import DemoCall


@dataclass(frozen=True)
class TextReply:
    """A text answer."""

    text: str


@dataclass(frozen=True)
class JsonReply:
    """A JSON document, to which styles do not apply."""

    text: str


@dataclass(frozen=True)
class ToolCallReply:
    """Tool calls."""

    calls: tuple[DemoCall, ...]


@dataclass(frozen=True)
class RefusalReply:
    """A refusal, with its reason."""

    text: str


Reply = TextReply | JsonReply | ToolCallReply | RefusalReply
Rule = Callable[[DemoConversation], Reply | None]

ABOUT = (
    "I am the demo model of this platform: a small set of rules, not a language model. I can echo (say hello), "
    "compute (what is 12*7?), remember (my name is Ada), call the tools that you offer when you name them, and fill "
    "JSON schemas."
)
HOW_TO_GO_ON = (
    "For real answers add an upstream: set UPSTREAM_BASE_URL and UPSTREAM_API_KEY and start again, or add one in the "
    "admin."
)
SHORT = 80

ECHO = re.compile(
    r"\s*(?:please\s+)?(?:echo\b|repeat after me\b|say\b|(?:reply|respond|answer) with(?: exactly)?\b):?\s*(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
IN_CAPITALS = r"in (?:all )?(?:capitals|caps|capital letters|upper ?case)"
CAPITALS = re.compile(rf"\b{IN_CAPITALS}\b|\ball caps\b", re.IGNORECASE)
REPEAT = r"(?:say|repeat|shout|write|give me) (?:that|it|the same|(?:your|the) (?:last |previous )?answer)(?: again)?"
AGAIN = re.compile(
    rf"(?:(?:and|now|please|can you|could you) )*(?:{REPEAT}(?:,? {IN_CAPITALS})?|{IN_CAPITALS})(?:,? please)?[.!? ]*",
    re.IGNORECASE,
)
STATES_FACT = re.compile(r"\bmy ((?:\w+ ){0,2}?\w+) is ([^.?!,;\n]+?)(?= and | but |[.?!,;\n]|$)", re.IGNORECASE)
ASKS = re.compile(
    r"\b(?:what(?: is|['’]s| was)|who is|do you (?:know|remember)) my ((?:\w+ ){0,2}?\w+?)(?: again)?(?:\?|[.! ]*$)",
    re.IGNORECASE,
)
GREETS = re.compile(r"\s*(?:hi|hello|hey|greetings|good (?:morning|afternoon|evening))\b", re.IGNORECASE)
QUOTABLE = r"(?:the words? )?(?:[\"“'](?P<quoted>[^\"”'\n]+)[\"”']|(?P<plain>[^.\n]+))"
ALWAYS = re.compile(rf"\balways (?:answer|reply|respond) with {QUOTABLE}", re.IGNORECASE)
ENDS = re.compile(rf"\bend (?:\w+ ){{0,3}}?with {QUOTABLE}", re.IGNORECASE)
PIRATE = re.compile(r"\bpirate\b", re.IGNORECASE)
WONDERS = re.compile(r"\b(?:who|what) are you\b|\bwhat can you do\b|\bhelp\b[?!. ]*$", re.IGNORECASE)


def reply(conversation: DemoConversation) -> tuple[str, Reply]:
    """Return the name of the rule that matched, and its answer with styles applied."""
    answers = ((rule.__name__, rule(conversation)) for rule in RULES)
    name, answer = next((name, answer) for name, answer in answers if answer is not None)
    return name.replace("_", " "), _styled(answer, conversation)


def declines(conversation: DemoConversation) -> Reply | None:
    """`demo-refuse` refuses every request."""
    return (
        RefusalReply("I cannot help with that: this demo model always declines.")
        if conversation.model.refuses
        else None
    )


def calls_the_demanded_tool(conversation: DemoConversation) -> Reply | None:
    """`tool_choice` requires a call: of the given function, of those that the text names, or of the first one."""
    choice = conversation.request.tool_choice
    if choice is None or choice.type in ("none", "auto"):
        return None
    functions = conversation.request.functions
    if choice.function is not None:
        functions = [function for function in functions if function.name == choice.function.name]
    named = tools.named(conversation.asked, functions)
    return _at_once(named or (tools.call(functions[0], words=conversation.asked),), conversation)


def calls_the_named_tools(conversation: DemoConversation) -> Reply | None:
    """The user names offered tools, and there are no results yet."""
    calls = () if conversation.results else tools.named(conversation.asked, conversation.request.functions)
    return _at_once(calls, conversation) if calls else None


def fills_the_schema(conversation: DemoConversation) -> Reply | None:
    """`response_format` has a JSON schema, which is filled with values from the user's text."""
    wanted = conversation.request.response_format
    if wanted is None or wanted.json_schema is None:
        return None
    text = " ".join(result.text for result in conversation.results) or conversation.asked
    try:
        document = schema.fill(
            wanted.json_schema.definition, values=TextValues(text), otherwise=_short(text) or "demo", extent=Fill.ALL
        )
    except UnfillableError as reason:
        message = f"The demo model cannot fill this schema: {reason}."
        raise DemoApiError(message, param="response_format.json_schema.schema", code="invalid_json_schema") from reason
    return JsonReply(json.dumps(document, ensure_ascii=False))


def quotes_the_tool_results(conversation: DemoConversation) -> Reply | None:
    """There are tool results."""
    if not conversation.results:
        return None
    quotes = "; ".join(f"{result.tool} answered “{_short(result.text, 500)}”" for result in conversation.results)
    return TextReply(f"The demo model asked your tools: {quotes}.")


def counts_the_attachments(conversation: DemoConversation) -> Reply | None:
    """The message has images, audio or files."""
    kinds = {"image_url": "image", "input_audio": "recording", "file": "file"}
    counted = [_counted(conversation.attachments(kind), noun) for kind, noun in kinds.items()]
    given = " and ".join(part for part in counted if part)
    if not given:
        return None
    question = f" You wrote: “{_short(conversation.asked)}”." if conversation.asked else ""
    return TextReply(f"You gave me {given}, but a demo cannot see, hear or read what is in there.{question}")


def repeats_its_previous_answer(conversation: DemoConversation) -> Reply | None:
    """ "Say that again", "shout it", "in capitals"."""
    if not AGAIN.fullmatch(conversation.asked.strip()):
        return None
    answer = conversation.previous_answer or "There is nothing to repeat yet, says the demo model."
    loudly = CAPITALS.search(conversation.asked) or "shout" in conversation.asked.lower()
    return TextReply(answer.upper() if loudly else answer)


def echoes(conversation: DemoConversation) -> Reply | None:
    """ "Echo: text", "say text", "repeat after me: text". Quotation marks around the text are removed."""
    found = ECHO.fullmatch(conversation.asked)
    if found is None:
        return None
    text = found[1]
    return TextReply(text[1:-1] if text[0] + text[-1] in ('""', "''", "“”") and len(text) > 2 else text)


def remembers(conversation: DemoConversation) -> Reply | None:
    """ "What is my name?", answered from the latest "my name is Ada" in the history."""
    asked = ASKS.search(conversation.asked)
    if asked is None:
        return None
    what = asked[1].lower()
    statements = [
        match for text in conversation.user_texts for match in STATES_FACT.finditer(text) if match[1].lower() == what
    ]
    if not statements:
        return TextReply(f"You have not told this demo your {what} in this conversation.")
    return TextReply(f"Your {what} is {statements[-1][2].strip()}, as you told this demo earlier.")


def takes_note(conversation: DemoConversation) -> Reply | None:
    """ "My name is Ada". The demo keeps no state; clients send the history."""
    statement = STATES_FACT.search(conversation.asked)
    if statement is None or "?" in conversation.asked:
        return None
    return TextReply(
        f"Noted: your {statement[1]} is {statement[2].strip()}. This demo remembers it as long as the history is sent."
    )


def computes(conversation: DemoConversation) -> Reply | None:
    """Arithmetic."""
    result = arithmetic.solve(conversation.asked)
    return TextReply(f"{result}, says the demo model.") if result else None


def knows_a_fact(conversation: DemoConversation) -> Reply | None:
    """A question about a known fact."""
    fact = facts.find(conversation.asked)
    return TextReply(f"{fact} (One of the few facts that this demo model knows.)") if fact else None


def introduces_itself(conversation: DemoConversation) -> Reply | None:
    """A greeting, or a question about the demo."""
    asked = conversation.asked
    if WONDERS.search(asked):
        return TextReply(f"{ABOUT} {HOW_TO_GO_ON}")
    return TextReply(f"Hello! {ABOUT}") if GREETS.match(asked) else None


def admits_being_a_demo(conversation: DemoConversation) -> Reply:
    """No other rule matched."""
    sentences = ["This is a demo model without an answer to this."]
    if conversation.asked:
        sentences.append(f"You wrote: “{_short(conversation.asked)}”.")
    if conversation.instructions:
        sentences.append(f"My instructions are: “{_short(conversation.instructions)}”.")
    if conversation.request.functions:
        names = ", ".join(function.name for function in conversation.request.functions)
        sentences.append(f"I call an offered tool when you name it: {names}.")
    return TextReply(" ".join([*sentences, HOW_TO_GO_ON]))


RULES: tuple[Rule, ...] = (
    declines,
    calls_the_demanded_tool,
    calls_the_named_tools,
    fills_the_schema,
    quotes_the_tool_results,
    counts_the_attachments,
    repeats_its_previous_answer,
    echoes,
    remembers,
    takes_note,
    computes,
    knows_a_fact,
    introduces_itself,
    admits_being_a_demo,
)


def apply_always_answer(text: str, instructions: str) -> str:
    """ "Always answer with X"."""
    match = ALWAYS.search(instructions)
    return _quotable(match) if match else text


def apply_pirate(text: str, instructions: str) -> str:
    """ "Talk like a pirate", the instruction of many introductory examples."""
    return f"Arr! {text}" if PIRATE.search(instructions) else text


def apply_ending(text: str, instructions: str) -> str:
    """ "Always end with X", "end every answer with X"."""
    match = ENDS.search(instructions)
    return f"{text} {_quotable(match)}" if match else text


def apply_capitals(text: str, instructions: str) -> str:
    """ "Answer in capitals"."""
    return text.upper() if CAPITALS.search(instructions) else text


STYLES = (apply_always_answer, apply_pirate, apply_ending, apply_capitals)


def _styled(answer: Reply, conversation: DemoConversation) -> Reply:
    if not isinstance(answer, TextReply):
        return answer
    text = answer.text
    for style in STYLES:
        text = style(text, conversation.instructions)
    wanted = conversation.request.response_format
    if wanted is not None and wanted.type == "json_object":
        return JsonReply(json.dumps({"answer": text}, ensure_ascii=False))
    return TextReply(text)


def _quotable(match: re.Match[str]) -> str:
    return (match["quoted"] or match["plain"]).strip()


def _at_once(calls: tuple[DemoCall, ...], conversation: DemoConversation) -> ToolCallReply:
    """Return all calls, or only the first if parallel calls are disabled."""
    return ToolCallReply(calls[:1] if conversation.request.parallel_tool_calls is False else calls)


def _short(text: str, length: int = SHORT) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= length else f"{one_line[: length - 1]}…"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}" if count else ""
