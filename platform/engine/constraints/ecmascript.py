"""Translation of ECMAScript's regular expressions, which JSON schemas and tools use, to the syntax of `regex`.

Processes of the compute pool import this module too, so it must not import other modules of the platform.
"""

from functools import lru_cache

import regex

# Pieces of an expression whose meaning may differ between the two syntaxes.
_PIECE = regex.compile(
    r"""
      \\u[dD](?P<high>[89abAB][0-9a-fA-F]{2})\\u[dD](?P<low>[c-fC-F][0-9a-fA-F]{2})
    | \\u\{(?P<code>[0-9a-fA-F]{1,6})\}
    | \\k<(?P<group>\w+)>
    | \\c(?P<control>[A-Za-z])
    | \\(?P<escaped>.)
    | (?P<any>\[\^\])
    | (?P<none>\[\])
    | (?P<open>\[\^?)
    | (?P<close>\])
    """,
    regex.VERBOSE | regex.DOTALL,
)
# Escapes that both syntaxes define.
_ESCAPES = frozenset("dDwWsSbBfnrtvxupP123456789")
_LAST_CODE = 0x10FFFF


@lru_cache(maxsize=1_000)
def readable(pattern: str) -> str:
    """Return the pattern in a form that `regex` compiles. Raises `regex.error` if it is valid in neither syntax.

    A pattern that `regex` can compile is not changed.
    """
    try:
        regex.compile(pattern)
    except regex.error:
        translated = _translated(pattern)
        regex.compile(translated)
        return translated
    return pattern


def _translated(pattern: str) -> str:
    pieces, end, is_class = [], 0, False
    for match in _PIECE.finditer(pattern):
        pieces.append(pattern[end : match.start()])
        end = match.end()
        piece, kind = match[0], match.lastgroup
        if is_class and kind in {"any", "none", "open"}:
            # A bracket inside of a class is a character, and an empty pair ends the class.
            piece = rf"\{piece}" if kind == "open" else piece.replace("[", r"\[")
            is_class = kind == "open"
        elif kind == "open":
            is_class = True
        elif kind == "close":
            is_class = False
        else:
            piece = _written(match, is_class=is_class)
        pieces.append(piece)
    return "".join([*pieces, pattern[end:]])


def _written(found: "regex.Match[str]", *, is_class: bool) -> str:
    match found.lastgroup:
        case "any":
            return r"[\s\S]"
        case "none":
            return "(?!)"
        case "low":
            high, low = (int(f"D{found[name]}", 16) for name in ("high", "low"))
            return rf"\U{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:08x}"
        case "code" if int(found["code"], 16) <= _LAST_CODE:
            return rf"\U{int(found['code'], 16):08x}"
        case "group" if not is_class:
            return f"(?P={found['group']})"
        case "control":
            return rf"\x{ord(found['control']) % 32:02x}"
        case "escaped" if found["escaped"] == "0":
            return r"\x00"
        case "escaped" if found["escaped"].isalpha() and found["escaped"] not in _ESCAPES:
            return found["escaped"]
    return found[0]
