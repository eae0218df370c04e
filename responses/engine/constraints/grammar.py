"""Validation of grammars of custom tools, and of texts against them.

An upstream without constrained decoding only tries to follow a grammar, so its text is validated afterwards. Grammars
are untrusted input: regular expressions run under a deadline. Lark has no deadline, so its grammars run in a separate
process.
"""

import asyncio
import hashlib
import math
import sys
from collections import OrderedDict
from pathlib import Path

import orjson
import regex

from responses.engine.turn import Grammar

MAX_DEFINITION = 65_536
_SECONDS = 2.0
# Earley parsers read about 12,000 characters a second, and patches may be long.
_CHARACTERS_PER_SECOND = 8_000
_MAX_SECONDS = 10.0
# The process has its seconds of CPU, which come late on a busy machine.
_LATE_SECONDS = 8.0
_MAX_REASON = 300
_CHECKER = Path(__file__).with_name("grammar_process.py")
_TOO_LONG = "it takes too long to check"
# Maximum number of valid grammars to remember. Clients send the same few grammars with each request.
_KEPT = 1_000
_known_good: OrderedDict[bytes, None] = OrderedDict()


async def definition_defect(grammar: Grammar) -> str | None:
    """Return the defect of a grammar; None if it is valid. Valid grammars are cached."""
    if len(grammar.definition) > MAX_DEFINITION:
        return f"it is longer than {MAX_DEFINITION} characters"
    key = hashlib.sha256(f"{grammar.syntax}\n{grammar.definition}".encode()).digest()
    if key in _known_good:
        _known_good.move_to_end(key)
        return None
    if grammar.syntax == "lark":
        defect = await _check_lark(grammar.definition, None)
    else:
        defect = await asyncio.to_thread(_pattern_defect, grammar.definition)
    if defect is None:
        _known_good[key] = None
        if len(_known_good) > _KEPT:
            _known_good.popitem(last=False)
    return defect


async def text_defect(grammar: Grammar, text: str) -> str | None:
    """Return how a text violates a grammar; None if it matches."""
    if grammar.syntax == "lark":
        return await _check_lark(grammar.definition, text)
    return await asyncio.to_thread(_mismatch, grammar.definition, text)


def _mismatch(pattern: str, text: str) -> str | None:
    try:
        # `concurrent` releases the GIL, so a slow expression does not stall other requests.
        found = regex.fullmatch(pattern, text, timeout=_SECONDS, concurrent=True)
    except TimeoutError:
        return _TOO_LONG
    return None if found else "it does not match the regular expression"


def _pattern_defect(pattern: str) -> str | None:
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError) as error:
        return str(error)[:_MAX_REASON]
    return None


async def _check_lark(definition: str, text: str | None) -> str | None:
    seconds = min(_SECONDS + len(text or "") / _CHARACTERS_PER_SECOND, _MAX_SECONDS)
    checker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(_CHECKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        request = orjson.dumps({"definition": definition, "text": text, "seconds": math.ceil(seconds)})
        answer, _ = await asyncio.wait_for(checker.communicate(request), seconds + _LATE_SECONDS)
    except TimeoutError:
        return _TOO_LONG
    finally:
        if checker.returncode is None:
            checker.kill()
            await checker.wait()
    if checker.returncode != 0:
        return "it takes too much memory or time to check"
    defect: str | None = orjson.loads(answer)
    return defect[:_MAX_REASON] if defect else None
