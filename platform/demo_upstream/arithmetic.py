"""Arithmetic expressions in a text: matched with a pattern, parsed with `ast`, evaluated on bounded numbers only."""

import ast
import operator
import re
from collections.abc import Callable

Number = int | float
LARGEST = 10**30
LARGEST_EXPONENT = 128
LONGEST = 200

IN_WORDS = (
    (re.compile(r"(?<=\d),(?=\d{3}\b)"), ""),
    (re.compile(r"\bplus\b", re.IGNORECASE), "+"),
    (re.compile(r"\bminus\b|−", re.IGNORECASE), "-"),
    (re.compile(r"\btimes\b|\bmultiplied by\b|[×·]|(?<=\d) ?x ?(?=\d)", re.IGNORECASE), "*"),
    (re.compile(r"\bdivided by\b|÷", re.IGNORECASE), "/"),
    (re.compile(r"\bto the power of\b|\^", re.IGNORECASE), "**"),
)
EXPRESSION = r"(?P<expression>[-+(\d.][-+*/().\d ]*)"
ASKED = re.compile(
    rf"\b(?:what(?: is|['’]s)|how much is|calculate|compute|evaluate|solve)[: ]+{EXPRESSION}", re.IGNORECASE
)
ALONE = re.compile(rf"{EXPRESSION}[=?]*")

BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class NoResultError(Exception):
    """The expression has no result; the message says why."""


def solve(text: str) -> str | None:
    """Return the solved expression, such as `12*7 = 84` for "What is 12*7?", or None if the text contains none."""
    for words, sign in IN_WORDS:
        text = words.sub(sign, text)
    found = ASKED.search(text) or ALONE.fullmatch(text.strip())
    expression = found["expression"].strip(" .") if found else ""
    try:
        tree = ast.parse(expression[: LONGEST + 1], mode="eval").body
    except SyntaxError:
        return None
    # A number alone is not arithmetic.
    if len(expression) > LONGEST or not any(isinstance(node, ast.BinOp) for node in ast.walk(tree)):
        return None
    try:
        value = _value(tree)
    except NoResultError as reason:
        return f"{expression} has no answer here: {reason}"
    return f"{expression} = {value if isinstance(value, int) else format(value, '.12g')}"


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            number: Number = value
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in UNARY:
            number = UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in BINARY:
            first, second = _value(left), _value(right)
            if isinstance(sign, ast.Pow) and abs(second) > LARGEST_EXPONENT:
                raise NoResultError("the exponent is too large for a demo")
            try:
                number = BINARY[type(sign)](first, second)
            except ZeroDivisionError:
                raise NoResultError("nothing can be divided by zero") from None
            except OverflowError:
                raise NoResultError("it is too large for a demo") from None
        case _:
            raise NoResultError("the demo knows + - * / and powers")
    if isinstance(number, complex):
        raise NoResultError("it is not a real number")
    if abs(number) > LARGEST:
        raise NoResultError("it is too large for a demo")
    return number
