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
    expression = _find(text)
    tree = _parse(expression) if expression else None
    if tree is None:
        return None
    try:
        return f"{expression} = {_plain(_value(tree))}"
    except NoResultError as reason:
        return f"{expression} has no answer here: {reason}"


def _find(text: str) -> str | None:
    for words, sign in IN_WORDS:
        text = words.sub(sign, text)
    found = ASKED.search(text) or ALONE.fullmatch(text.strip())
    return found["expression"].strip(" .") if found else None


def _parse(expression: str) -> ast.expr | None:
    """Return the syntax tree, or None if the text is not arithmetic. A number alone is not."""
    if len(expression) > LONGEST:
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return None
    return tree if any(isinstance(node, ast.BinOp) for node in ast.walk(tree)) else None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _within_bounds(number)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in UNARY:
            return UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in BINARY:
            return _within_bounds(_apply(sign, _value(left), _value(right)))
    raise NoResultError("the demo knows + - * / and powers")


def _apply(sign: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(sign, ast.Pow) and abs(right) > LARGEST_EXPONENT:
        raise NoResultError("the exponent is too large for a demo")
    try:
        return BINARY[type(sign)](left, right)
    except ZeroDivisionError:
        raise NoResultError("nothing can be divided by zero") from None
    except OverflowError:
        raise NoResultError("it is too large for a demo") from None


def _within_bounds(number: Number) -> Number:
    if isinstance(number, complex):
        raise NoResultError("it is not a real number")
    if abs(number) > LARGEST:
        raise NoResultError("it is too large for a demo")
    return number


def _plain(number: Number) -> str:
    return str(number) if isinstance(number, int) else format(number, ".12g")
