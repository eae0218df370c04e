"""Validation of grammars of custom tools, and of texts against them.

An upstream without constrained decoding only tries to follow a grammar, so its text is validated afterwards. Grammars
are untrusted input whose check may take any time and memory, so it runs in processes with limits.
"""

import asyncio
import hashlib
import math
from collections import OrderedDict
from dataclasses import replace

from core.compute import pool
from core.compute.pool import Computation, ComputationFailed, TooCostly, compute
from engine.constraints import grammar_check
from engine.turn import Grammar

MAX_DEFINITION = 65_536
_SECONDS = 2.0
# Earley parsers read about 12,000 characters a second, and patches may be long.
_CHARACTERS_PER_SECOND = 8_000
_MAX_SECONDS = 10.0
# The check of a grammar ends after two seconds in any case, because a client waits for it. The check of a text is
# limited in CPU time, and gets more time by the clock, because its process may have to wait on a busy machine.
_LATE_SECONDS = 8.0
_LARK = Computation(
    function=f"{grammar_check.__name__}:check_lark",
    imports=("lark", "lark.load_grammar", "regex"),
    cpu_seconds=math.ceil(_SECONDS),
    seconds=_SECONDS,
    memory=512 * 1024 * 1024,
    result=16 * 1024,
)
_REGEX = replace(
    _LARK,
    function=f"{grammar_check.__name__}:check_regex",
    imports=("regex", "engine.constraints.ecmascript"),
)
# Maximum number of valid grammars to remember. Clients send the same few grammars with each request.
_KEPT = 1_000
_known_good: OrderedDict[bytes, None] = OrderedDict()
# Simultaneous requests of a team with the same grammar wait for one check, so that they do not fill its queue.
_checks: dict[tuple[asyncio.AbstractEventLoop, str, bytes], asyncio.Task[str | None]] = {}


async def definition_defect(grammar: Grammar) -> str | None:
    """Return the defect of a grammar; None if it is valid. Valid grammars are cached. Raises `Overloaded`."""
    if len(grammar.definition) > MAX_DEFINITION:
        return f"it is longer than {MAX_DEFINITION} characters"
    key = hashlib.sha256(f"{grammar.syntax}\n{grammar.definition}".encode(errors="surrogatepass")).digest()
    if key in _known_good:
        _known_good.move_to_end(key)
        return None
    shared = asyncio.get_running_loop(), pool.team(), key
    if (check := _checks.get(shared)) is None:
        check = _checks[shared] = asyncio.create_task(_check_definition(grammar, key))

        def forget(ended: asyncio.Task[str | None]) -> None:
            del _checks[shared]
            # Reads the exception: if no caller waits any more, asyncio would log it as never retrieved.
            if not ended.cancelled():
                ended.exception()

        check.add_done_callback(forget)
    return await asyncio.shield(check)


async def _check_definition(grammar: Grammar, key: bytes) -> str | None:
    defect = await _check(grammar, None)
    if defect is None:
        _known_good[key] = None
        if len(_known_good) > _KEPT:
            _known_good.popitem(last=False)
    return defect


async def text_defect(grammar: Grammar, text: str) -> str | None:
    """Return how a text violates a grammar; None if it matches."""
    return await _check(grammar, text)


async def _check(grammar: Grammar, text: str | None) -> str | None:
    computation = _LARK if grammar.syntax == "lark" else _REGEX
    if text is not None:
        seconds = _SECONDS
        if grammar.syntax == "lark":
            seconds = min(_SECONDS + len(text) / _CHARACTERS_PER_SECOND, _MAX_SECONDS)
        computation = replace(computation, cpu_seconds=math.ceil(seconds), seconds=seconds + _LATE_SECONDS)
    try:
        # A text is a model's answer, so its run has begun and waits instead of being refused.
        defect = await compute(computation, grammar.definition, text, waits=text is not None)
    except TooCostly as error:
        return "it takes too long to check" if error.is_slow else "it takes too much memory or time to check"
    except ComputationFailed:
        return "it cannot be read"
    return defect.decode() or None
