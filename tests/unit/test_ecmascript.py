"""Regular expressions of ECMAScript, translated for the module `regex`."""

import pytest
import regex

from engine.constraints.ecmascript import readable


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\u{1F600}+$", "😀😀", "u"),
        (r"^[\u{61}-\u{63}]$", "b", "d"),
        (r"^\uD83D\uDE00\u{21}$", "😀!", "!"),
        (r"^[^]$", "\n", ""),
        (r"^a[^]*$", "a\nb]", "b"),
        (r"^(?:a|[])\u{62}$", "ab", "b"),
        (r"^(?<sign>[-+])\k<sign>$", "--", "-+"),
        (r"^\cJ\u{61}$", "\na", "Ja"),
        (r"^\0\u{61}$", "\x00a", "0a"),
        (r"^\_\-\/\i$", "_-/i", "i"),
        (r"^[[\u{61}]$", "[", "b"),
        (r"^\[[^]\]$", "[x]", "[]"),
    ],
)
def test_a_pattern_of_ecmascript_is_understood(pattern: str, matching: str, other: str) -> None:
    assert regex.search(readable(pattern), matching)
    assert not regex.search(readable(pattern), other)


@pytest.mark.parametrize("pattern", [r"\[[^]]*\]", r"[]a]+", r"\p{L}+", r"(?P<a>x)(?P=a)"])
def test_a_pattern_that_compiles_is_not_changed(pattern: str) -> None:
    assert readable(pattern) == pattern


@pytest.mark.parametrize("pattern", ["(", "[a", r"\u{110000}", "a**", r"\k<no>"])
def test_a_pattern_of_neither_syntax_is_rejected(pattern: str) -> None:
    with pytest.raises(regex.error):
        readable(pattern)
