"""Check of a grammar, and optionally of a text against it, in a process of the pool."""

from typing import Any

_MAX_REASON = 300


def check_lark(definition: str, text: str | None) -> bytes:
    """Return the defect of a Lark grammar, or of a text that does not match it; empty if there is none."""
    import regex
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
        return f"it fails to parse at {where}".encode()
    except (LarkError, regex.error, RecursionError, OSError) as error:
        return _reason(error)
    return b""


def check_regex(definition: str, text: str | None) -> bytes:
    """Return the defect of a regular expression, or of a text that does not match it; empty if there is none."""
    import regex

    from engine.constraints.ecmascript import readable

    try:
        expression = regex.compile(readable(definition))
    except (regex.error, RecursionError) as error:
        return _reason(error)
    is_valid = text is None or expression.fullmatch(text) is not None
    return b"" if is_valid else b"it does not match the regular expression"


def _reason(error: Exception) -> bytes:
    return (str(error).strip() or type(error).__name__)[:_MAX_REASON].encode(errors="replace")


def _grammar(definition: str) -> Any:
    """Return a parsed grammar in which terminals may match the empty text, as OpenAI allows.

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
