"""Whether a text keeps to a grammar of the client's, and whether a grammar is one.

An upstream that decodes freely only tries to keep to a grammar, so what it wrote is checked afterwards. Grammars come
from strangers: expressions run under a deadline, and lark's grammars, which know none, in a process of their own.
"""

import asyncio
import hashlib
import sys
from collections import OrderedDict
from pathlib import Path

import orjson
import regex

from responses.engine.turn import Grammar

MAX_DEFINITION = 65_536
_SECONDS = 2.0
_MAX_REASON = 300
_CHECKER = Path(__file__).with_name("grammar_process.py")
_TOO_LONG = "it takes too long to check"
_KEPT = 1_000
_known_good: OrderedDict[bytes, None] = OrderedDict()


async def definition_defect(grammar: Grammar) -> str | None:
    """What is wrong with a grammar itself, in a sentence; None where nothing is. Good ones are remembered."""
    if len(grammar.definition) > MAX_DEFINITION:
        return f"it is longer than {MAX_DEFINITION} characters"
    key = hashlib.sha256(f"{grammar.syntax}\n{grammar.definition}".encode()).digest()
    if key in _known_good:
        _known_good.move_to_end(key)
        return None
    if grammar.syntax == "lark":
        wrong = await _asked(grammar.definition, None)
    else:
        wrong = await asyncio.to_thread(_pattern_defect, grammar.definition)
    if wrong is None:
        _known_good[key] = None
        if len(_known_good) > _KEPT:
            _known_good.popitem(last=False)
    return wrong


async def text_defect(grammar: Grammar, text: str) -> str | None:
    """How a text breaks a grammar, in a sentence; None where it does not."""
    if grammar.syntax == "lark":
        return await _asked(grammar.definition, text)
    return await asyncio.to_thread(_mismatch, grammar.definition, text)


def _mismatch(pattern: str, text: str) -> str | None:
    """Without the interpreter's lock, so that nobody else waits for a slow expression."""
    try:
        found = regex.fullmatch(pattern, text, timeout=_SECONDS, concurrent=True)
    except TimeoutError:
        return _TOO_LONG
    return None if found else "it does not match the regular expression"


def _pattern_defect(pattern: str) -> str | None:
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError) as wrong:
        return str(wrong)[:_MAX_REASON]
    return None


async def _asked(definition: str, text: str | None) -> str | None:
    """The verdict of the process that may take memory and time, within limits, and be ended."""
    checker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(_CHECKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        asked = orjson.dumps({"definition": definition, "text": text})
        answer, _ = await asyncio.wait_for(checker.communicate(asked), _SECONDS)
    except TimeoutError:
        return _TOO_LONG
    finally:
        if checker.returncode is None:
            checker.kill()
            await checker.wait()
    if checker.returncode != 0:
        return "it takes too much memory or time to check"
    wrong: str | None = orjson.loads(answer)
    return wrong[:_MAX_REASON] if wrong else None
