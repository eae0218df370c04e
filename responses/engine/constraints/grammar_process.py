"""Script that checks a Lark grammar, and optionally a text against it, in a separate process.

Standard input: a JSON object with `definition` and `text` (or null). Standard output: the defect as a JSON string, or
null.
"""

import json
import resource
import sys

_SECONDS = 2
_BYTES = 512 * 1024 * 1024


def main() -> None:
    """Limit the resources of this process, check, and write the result."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    request = json.load(sys.stdin)
    json.dump(defect(request["definition"], request["text"]), sys.stdout)


def defect(definition: str, text: str | None) -> str | None:
    """Return the defect of the grammar or of the text; None if both are valid."""
    # Imported here, so that the resource limits apply to the import as well.
    from lark import Lark
    from lark.exceptions import LarkError, UnexpectedInput

    try:
        parser = Lark(definition, parser="earley", lexer="dynamic", regex=True)
        if text is not None:
            parser.parse(text)
    except UnexpectedInput as error:
        # Lark reports -1 at the end of the input.
        line, column = max(error.line, 1), max(error.column, 1)
        where = f"line {line}, column {column}" if text is not None else "its definition"
        return f"it fails to parse at {where}"
    except (LarkError, RecursionError, OSError) as error:
        return str(error).strip() or type(error).__name__
    return None


if __name__ == "__main__":
    main()
