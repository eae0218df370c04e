"""The rules of the demo: a table of small functions, of which the first with an answer wins.

`RULES` determine the answer, `STYLES` modify its text according to instructions such as "answer in capitals". To add a
rule, write a function from a conversation to a reply or None and add it to the table. Names of rules are shown in
reasoning.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from demo_upstream import arithmetic, schema, tools
from demo_upstream.errors import Code, DemoApiError
from demo_upstream.models import DemoModel
from demo_upstream.request import DemoChatRequest
from demo_upstream.schema import Fill, UnfillableError
from demo_upstream.text_values import TextValues
from demo_upstream.tools import DemoCall


@dataclass(frozen=True)
class Reply:
    """A text, which may be a refusal, or tool calls. Styles do not apply to JSON documents."""

    text: str = ""
    calls: tuple[DemoCall, ...] = ()
    is_json: bool = False
    refuses: bool = False


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
# A text that contains all words of a key gets its sentence.
FACTS = {
    ("capital", "france"): "The capital of France is Paris.",
    ("capital", "germany"): "The capital of Germany is Berlin.",
    ("capital", "italy"): "The capital of Italy is Rome.",
    ("capital", "spain"): "The capital of Spain is Madrid.",
    ("capital", "japan"): "The capital of Japan is Tokyo.",
    ("capital", "kenya"): "The capital of Kenya is Nairobi.",
    ("capital", "brazil"): "The capital of Brazil is Brasília.",
    ("largest", "planet"): "The largest planet of the solar system is Jupiter.",
    ("highest", "mountain"): "The highest mountain above the sea is Mount Everest.",
    ("wrote", "hamlet"): "Hamlet was written by William Shakespeare.",
    ("speed", "light"): "Light travels at 299,792,458 metres per second in a vacuum.",
    ("water", "boil"): "At sea level water boils at 100 degrees Celsius.",
    ("days", "week"): "A week has seven days.",
}

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


def reply(chat: DemoChatRequest, model: DemoModel) -> tuple[str, Reply]:
    """Return the name of the rule that matched, and its answer with styles applied."""
    if model.base == "demo-refuse":
        return "declines", Reply("I cannot help with that: this demo model always declines.", refuses=True)
    answers = ((rule.__name__, rule(chat)) for rule in RULES)
    name, answer = next((name, answer) for name, answer in answers if answer is not None)
    if answer.calls or answer.is_json:
        return name.replace("_", " "), answer
    text = answer.text
    for style in STYLES:
        text = style(text, chat.instructions)
    if chat.response_format is not None and chat.response_format.type == "json_object":
        text = json.dumps({"answer": text}, ensure_ascii=False)
    return name.replace("_", " "), Reply(text)


def calls_the_demanded_tool(chat: DemoChatRequest) -> Reply | None:
    """Make the calls that `tool_choice` requires: of the given function, of those in the text, or of the first."""
    choice = chat.tool_choice
    if choice is None or choice.type in ("none", "auto"):
        return None
    functions = chat.functions
    if choice.function is not None:
        functions = [function for function in functions if function.name == choice.function.name]
    return _at_once(tools.named(chat.asked, functions) or (tools.call(functions[0], words=chat.asked),), chat)


def calls_the_named_tools(chat: DemoChatRequest) -> Reply | None:
    """Call the offered tools that the user names, unless there are results already."""
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


def repeats_its_previous_answer(chat: DemoChatRequest) -> Reply | None:
    """Repeat the previous answer for "say that again", "shout it" or "in capitals"."""
    if not AGAIN.fullmatch(chat.asked.strip()):
        return None
    answers = [message.text for message in chat.messages if message.role == "assistant" and message.text]
    answer = answers[-1] if answers else "There is nothing to repeat yet, says the demo model."
    loudly = CAPITALS.search(chat.asked) or "shout" in chat.asked.lower()
    return Reply(answer.upper() if loudly else answer)


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
    """Solve an arithmetic expression."""
    result = arithmetic.solve(chat.asked)
    return Reply(f"{result}, says the demo model.") if result else None


def knows_a_fact(chat: DemoChatRequest) -> Reply | None:
    """Answer a question about a known fact."""
    words = set(re.findall(r"\w+", chat.asked.lower()))
    fact = next((fact for key, fact in FACTS.items() if words.issuperset(key)), None)
    return Reply(f"{fact} (One of the few facts that this demo model knows.)") if fact else None


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
    """Follow "always answer with X"."""
    match = ALWAYS.search(instructions)
    return _quotable(match) if match else text


def apply_pirate(text: str, instructions: str) -> str:
    """Follow "talk like a pirate", the instruction of many introductory examples."""
    return f"Arr! {text}" if PIRATE.search(instructions) else text


def apply_ending(text: str, instructions: str) -> str:
    """Follow "always end with X" or "end every answer with X"."""
    match = ENDS.search(instructions)
    return f"{text} {_quotable(match)}" if match else text


def apply_capitals(text: str, instructions: str) -> str:
    """Follow "answer in capitals"."""
    return text.upper() if CAPITALS.search(instructions) else text


STYLES = (apply_always_answer, apply_pirate, apply_ending, apply_capitals)


def _quotable(match: re.Match[str]) -> str:
    return (match["quoted"] or match["plain"]).strip()


def _at_once(calls: tuple[DemoCall, ...], chat: DemoChatRequest) -> Reply:
    """Return all calls, or only the first if parallel calls are disabled."""
    return Reply(calls=calls[:1] if chat.parallel_tool_calls is False else calls)


def _short(text: str, length: int = SHORT) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= length else f"{one_line[: length - 1]}…"
