"""Checks one grammar of lark's, and a text against it, in a process that nothing else depends on.

Read from standard input: a JSON object with `definition`, and `text` or null. Written: what is wrong, or null.
"""

import json
import resource
import sys

_SECONDS = 2
_BYTES = 512 * 1024 * 1024


def main() -> None:
    """Limit this process, check, and answer."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    asked = json.load(sys.stdin)
    json.dump(defect(asked["definition"], asked["text"]), sys.stdout)


def defect(definition: str, text: str | None) -> str | None:
    """What is wrong with the grammar, or with the text; None where nothing is."""
    # Only here, so that the limits hold for it as well.
    from lark import Lark
    from lark.exceptions import LarkError, UnexpectedInput

    try:
        parser = Lark(definition, parser="earley", lexer="dynamic", regex=True)
        if text is not None:
            parser.parse(text)
    except UnexpectedInput as wrong:
        line, column = max(wrong.line, 1), max(wrong.column, 1)
        where = f"line {line}, column {column}" if text is not None else "its definition"
        return f"it breaks off at {where}"
    except (LarkError, RecursionError, OSError) as wrong:
        return str(wrong).strip() or type(wrong).__name__
    return None


if __name__ == "__main__":
    main()
