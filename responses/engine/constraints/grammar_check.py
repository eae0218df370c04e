"""Script that checks a Lark grammar, and optionally a text against it, in a separate process.

Standard input: a JSON object with `definition`, `text` (or null) and the limit of CPU in `seconds`. Standard output:
the defect as a JSON string, or null.
"""

import json
import resource
import sys
from typing import Any

_BYTES = 512 * 1024 * 1024


def main() -> None:
    """Limit the resources of this process, check, and write the result."""
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    json.dump(defect(request["definition"], request["text"]), sys.stdout)


def defect(definition: str, text: str | None) -> str | None:
    """Return the defect of the grammar or of the text; None if both are valid."""
    # Imported here, so that the resource limits apply to the import as well.
    from lark import Lark
    from lark.exceptions import LarkError, UnexpectedInput

    try:
        parser = Lark(_grammar(definition), parser="earley", lexer="dynamic", regex=True)
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


def _grammar(definition: str) -> Any:
    """Return a parsed grammar in which terminals may match the empty text, as they may at OpenAI.

    Lark refuses such a terminal, so it becomes an optional terminal that matches at least one character.
    """
    from lark.grammar import NonTerminal, Rule, Terminal
    from lark.lexer import PatternRE
    from lark.load_grammar import Grammar, load_grammar
    from typing_extensions import override

    class Lenient(Grammar):
        @override
        def compile(self, *arguments: Any) -> Any:
            terminals, rules, ignored = super().compile(*arguments)
            optional = {}
            for terminal in terminals:
                if isinstance(terminal.pattern, PatternRE) and terminal.pattern.min_width == 0:
                    # `\G` is the position where the match began.
                    value = rf"(?:{terminal.pattern.value})(?!\G)"
                    terminal.pattern = PatternRE(value, terminal.pattern.flags)
                    optional[terminal.name] = NonTerminal(f"__optional_{terminal.name}")
            for rule in rules:
                rule.expansion = [optional.get(symbol.name, symbol) for symbol in rule.expansion]
            for name, origin in optional.items():
                rules += [Rule(origin, [Terminal(name)], 0), Rule(origin, [], 1)]
            return terminals, rules, ignored

    parsed, _ = load_grammar(definition, "<string>", [], global_keep_all_tokens=False)  # type: ignore[no-untyped-call]
    return Lenient(parsed.rule_defs, parsed.term_defs, parsed.ignore)


if __name__ == "__main__":
    main()
