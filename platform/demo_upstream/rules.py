"""The rules of the demo: a table of small functions. The first one that returns a reply wins.

To add a rule, write a function from a conversation to a reply or None and add it to the table. Names of rules are shown
in reasoning.
"""

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from demo_upstream import schema, tools
from demo_upstream.errors import Code, DemoApiError
from demo_upstream.request import DemoChatRequest
from demo_upstream.schema import Fill, UnfillableError
from demo_upstream.text_values import TextValues
from demo_upstream.tools import DemoCall


@dataclass(frozen=True)
class Reply:
    """A text, which may be a JSON document, or tool calls."""

    text: str = ""
    calls: tuple[DemoCall, ...] = ()
    is_json: bool = False


Rule = Callable[[DemoChatRequest], Reply | None]

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
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

ECHO = re.compile(
    r"\s*(?:please\s+)?(?:echo\b|repeat after me\b|say\b|(?:reply|respond|answer) with(?: exactly)?\b):?\s*(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
STATES_FACT = re.compile(r"\bmy ((?:\w+ ){0,2}?\w+) is ([^.?!,;\n]+?)(?= and | but |[.?!,;\n]|$)", re.IGNORECASE)
ASKS = re.compile(
    r"\b(?:what(?: is|['’]s| was)|who is|do you (?:know|remember)) my ((?:\w+ ){0,2}?\w+?)(?: again)?(?:\?|[.! ]*$)",
    re.IGNORECASE,
)
# Numbers are bounded, so that products are quickly computed. More than one operation is not supported.
COMPUTES = re.compile(r"\bwhat(?: is|['’]s) (\d{1,15}) ?([-+*]) ?(\d{1,15})(?! ?[-+*/.^\d])", re.IGNORECASE)
GREETS = re.compile(r"\s*(?:hi|hello|hey|greetings|good (?:morning|afternoon|evening))\b", re.IGNORECASE)
ENDS = re.compile(
    r"\bend (?:\w+ ){0,3}?with (?:the words? )?(?:[\"“'](?P<quoted>[^\"”'\n]+)[\"”']|(?P<plain>[^.\n]+))", re.IGNORECASE
)
WONDERS = re.compile(r"\b(?:who|what) are you\b|\bwhat can you do\b|\bhelp\b[?!. ]*$", re.IGNORECASE)


def reply(chat: DemoChatRequest) -> tuple[str, Reply]:
    """Return the name of the rule that matched, and its reply with the ending that the instructions demand, if any."""
    answers = ((rule.__name__, rule(chat)) for rule in RULES)
    name, answer = next((name, answer) for name, answer in answers if answer is not None)
    if not answer.calls and not answer.is_json:
        demanded = ENDS.search(chat.instructions)
        ending = f" {(demanded['quoted'] or demanded['plain']).strip()}" if demanded else ""
        text = answer.text + ending
        if chat.response_format is not None and chat.response_format.type == "json_object":
            text = json.dumps({"answer": text}, ensure_ascii=False)
        answer = Reply(text)
    return name.replace("_", " "), answer


def calls_the_demanded_tool(chat: DemoChatRequest) -> Reply | None:
    """Make the calls that `tool_choice` requires: of the named function, or else of functions that the text names.

    If the text names none, the first offered function is called.
    """
    choice = chat.tool_choice
    if choice is None or choice.type in ("none", "auto"):
        return None
    functions = chat.functions
    if choice.function is not None:
        functions = [function for function in functions if function.name == choice.function.name]
    return _at_once(tools.named(chat.asked, functions) or (tools.call(functions[0], words=chat.asked),), chat)


def calls_the_named_tools(chat: DemoChatRequest) -> Reply | None:
    """Call the offered tools that the user names, unless the history ends with results of tools."""
    calls = () if chat.results else tools.named(chat.asked, chat.functions)
    return _at_once(calls, chat) if calls else None


def fills_the_schema(chat: DemoChatRequest) -> Reply | None:
    """Fill the JSON schema of `response_format` with values from the tool results or from the user's text."""
    wanted = chat.response_format
    if wanted is None or wanted.json_schema is None:
        return None
    text = " ".join(text for _, text in chat.results) or chat.asked
    try:
        document = schema.fill(
            wanted.json_schema.definition, values=TextValues(text), otherwise=_short(text) or "demo", extent=Fill.ALL
        )
    except UnfillableError as reason:
        raise DemoApiError(
            f"The demo model cannot fill this schema: {reason}.",
            param="response_format.json_schema.schema",
            code=Code.INVALID_JSON_SCHEMA,
        ) from reason
    return Reply(json.dumps(document, ensure_ascii=False), is_json=True)


def quotes_the_tool_results(chat: DemoChatRequest) -> Reply | None:
    """Quote the tool results, if there are any."""
    if not chat.results:
        return None
    quotes = "; ".join(f"{tool} answered “{_short(text, 500)}”" for tool, text in chat.results)
    return Reply(f"The demo model asked your tools: {quotes}.")


def counts_the_attachments(chat: DemoChatRequest) -> Reply | None:
    """Count the images, recordings and files of the message, if there are any."""
    kinds = {"image_url": "image", "input_audio": "recording", "file": "file"}
    counts = [(count, noun) for kind, noun in kinds.items() if (count := chat.attachments(kind))]
    given = " and ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    if not given:
        return None
    question = f" You wrote: “{_short(chat.asked)}”." if chat.asked else ""
    return Reply(f"You gave me {given}, but a demo cannot see, hear or read what is in there.{question}")


def echoes(chat: DemoChatRequest) -> Reply | None:
    """Return the text of "echo: text", "say text" or "repeat after me: text", without quotation marks around it."""
    found = ECHO.fullmatch(chat.asked)
    if found is None:
        return None
    text = found[1]
    return Reply(text[1:-1] if text[0] + text[-1] in ('""', "''", "“”") and len(text) > 2 else text)


def remembers(chat: DemoChatRequest) -> Reply | None:
    """Answer "What is my name?" from the latest "my name is Ada" in the history."""
    asked = ASKS.search(chat.asked)
    if asked is None:
        return None
    what = asked[1].lower()
    statements = [match for text in chat.user_texts for match in STATES_FACT.finditer(text) if match[1].lower() == what]
    if not statements:
        return Reply(f"You have not told this demo your {what} in this chat.")
    return Reply(f"Your {what} is {statements[-1][2].strip()}, as you told this demo earlier.")


def takes_note(chat: DemoChatRequest) -> Reply | None:
    """Confirm a statement such as "my name is Ada". The demo keeps no state; clients send the history."""
    statement = STATES_FACT.search(chat.asked)
    if statement is None or "?" in chat.asked:
        return None
    return Reply(
        f"Noted: your {statement[1]} is {statement[2].strip()}. This demo remembers it as long as the history is sent."
    )


def computes(chat: DemoChatRequest) -> Reply | None:
    """Answer "What is 12*7?"."""
    asked = COMPUTES.search(chat.asked)
    if asked is None:
        return None
    left, sign, right = asked.groups()
    return Reply(f"{left}{sign}{right} = {OPERATORS[sign](int(left), int(right))}, says the demo model.")


def introduces_itself(chat: DemoChatRequest) -> Reply | None:
    """Answer a greeting, or a question about the demo."""
    asked = chat.asked
    if WONDERS.search(asked):
        return Reply(f"{ABOUT} {HOW_TO_GO_ON}")
    return Reply(f"Hello! {ABOUT}") if GREETS.match(asked) else None


def admits_being_a_demo(chat: DemoChatRequest) -> Reply:
    """Answer if no other rule matched."""
    sentences = ["This is a demo model without an answer to this."]
    if chat.asked:
        sentences.append(f"You wrote: “{_short(chat.asked)}”.")
    if chat.instructions:
        sentences.append(f"My instructions are: “{_short(chat.instructions)}”.")
    if chat.functions:
        names = ", ".join(function.name for function in chat.functions)
        sentences.append(f"I call an offered tool when you name it: {names}.")
    return Reply(" ".join([*sentences, HOW_TO_GO_ON]))


RULES: tuple[Rule, ...] = (
    calls_the_demanded_tool,
    calls_the_named_tools,
    fills_the_schema,
    quotes_the_tool_results,
    counts_the_attachments,
    echoes,
    remembers,
    takes_note,
    computes,
    introduces_itself,
    admits_being_a_demo,
)


def _at_once(calls: tuple[DemoCall, ...], chat: DemoChatRequest) -> Reply:
    """Return all calls, or only the first if parallel calls are disabled."""
    return Reply(calls=calls[:1] if chat.parallel_tool_calls is False else calls)


def _short(text: str, length: int = SHORT) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= length else f"{one_line[: length - 1]}…"
