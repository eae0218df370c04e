"""Grammars of custom tools: validation, matching, and protection against expensive ones."""

import asyncio

import pytest

from engine.constraints.grammar import MAX_DEFINITION, definition_defect, text_defect
from engine.turn import Grammar
from tests.support.machine_clock import machine_time

SUM = 'start: NUMBER "+" NUMBER\n%import common.NUMBER\n%ignore " "'

# Terminals that match the empty text, in the way of Codex' grammar for patches: inline, named and repeated.
LINES = 'start: (">" /(.*)/ LF)+ END\nEND: /x*/\nLF: /\\n/'


def lark(definition: str) -> Grammar:
    return Grammar(syntax="lark", definition=definition)


def pattern(definition: str) -> Grammar:
    return Grammar(syntax="regex", definition=definition)


@pytest.mark.parametrize("grammar", [lark(SUM), lark('start: "a"+ | /[0-9]{2}/'), lark(LINES), pattern(r"[a-z]+\d{2}")])
async def test_a_valid_grammar_has_no_defect(grammar: Grammar) -> None:
    assert await definition_defect(grammar) is None
    assert await definition_defect(grammar) is None


async def test_simultaneous_requests_with_one_grammar_share_its_check() -> None:
    # More than the queue of a team accepts.
    same, defective = lark('start: "the same"'), lark("start: (")
    assert await asyncio.gather(*(definition_defect(same) for _ in range(100))) == [None] * 100
    assert all(await asyncio.gather(*(definition_defect(defective) for _ in range(100))))


@pytest.mark.parametrize(
    "grammar",
    [
        lark("start: missing"),
        lark("no grammar at all"),
        lark('start: "a'),
        lark("start: /(/"),
        lark("other: /a/"),
        lark('%import .secrets.word\nstart: "a"'),
        pattern("("),
        pattern("a" * (MAX_DEFINITION + 1)),
    ],
)
async def test_the_defect_of_an_invalid_grammar_is_reported(grammar: Grammar) -> None:
    assert await definition_defect(grammar)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (lark(SUM), "1 + 22"),
        (lark(LINES), ">\n>a b\n>\n"),
        (lark(LINES), ">a\nxx"),
        (lark("start: /a*/i"), ""),
        (lark("start: /a*/i"), "aA"),
        (pattern(r"[a-z]+\d{2}"), "ab12"),
        (pattern("a.b"), "a b"),
    ],
)
async def test_a_text_that_matches_its_grammar_has_no_defect(grammar: Grammar, text: str) -> None:
    assert await text_defect(grammar, text) is None


@pytest.mark.slow
async def test_a_long_text_has_more_time() -> None:
    text = ">a line of some length\n" * 1_000
    # The check may use seconds of CPU time. On a busy machine, they come too late and it is repeated.
    assert None in [await text_defect(lark(LINES), text) for _ in range(5)]


@pytest.mark.parametrize(
    ("grammar", "text", "words"),
    [
        (lark(SUM), "1 +", "fails to parse"),
        (lark(SUM), "1 - 2", "line 1, column 3"),
        (lark(LINES), ">a\nb\n", "line 2, column 1"),
        (pattern("[a-z]+"), "ab12", "regular expression"),
        (pattern("a.b"), "a\nb", "regular expression"),
    ],
)
async def test_the_violation_of_a_grammar_is_reported(grammar: Grammar, text: str, words: str) -> None:
    assert words in (await text_defect(grammar, text) or "")


@pytest.mark.slow
async def test_a_grammar_that_takes_too_much_memory_or_time_is_aborted() -> None:
    options = " ".join(f"[x{number}]" for number in range(40))
    rules = "\n".join(f'x{number}: "{number}"' for number in range(40))
    began = machine_time()
    assert "too" in (await definition_defect(lark(f"start: {options}\n{rules}")) or "")
    # The limit is two seconds; the rest is for a busy machine.
    assert machine_time() - began < 4


async def test_a_regular_expression_may_be_written_for_ecmascript() -> None:
    assert await definition_defect(pattern(r"[\u{61}-\u{63}][^]")) is None
    assert await text_defect(pattern(r"[\u{61}-\u{63}][^]"), "b\n") is None
    assert await text_defect(pattern(r"[\u{61}-\u{63}][^]"), "d\n") is not None


@pytest.mark.slow
async def test_a_regular_expression_that_never_ends_is_aborted() -> None:
    assert "too long" in (await text_defect(pattern(r"(?:(?:a|aa)+)+b"), "a" * 60) or "")
    assert "too" in (await text_defect(lark(r"start: /(?:(?:a|aa)+)+b/"), "a" * 60) or "")
