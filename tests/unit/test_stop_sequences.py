"""Stop sequences are found across pieces of text, and no more text than necessary is buffered."""

import pytest

from engine.converter.stop_sequences import StopSequences


def written(sequences: list[str], *pieces: str) -> tuple[list[str], str | None]:
    """Return the written pieces, with the buffered text at the end, and the sequence that was found."""
    stop = StopSequences(sequences)
    shown = [stop.feed(piece) for piece in pieces]
    return [*shown, stop.end()], stop.found


def test_the_text_ends_before_a_sequence() -> None:
    assert written(["END"], "one END two") == (["one ", ""], "END")


def test_a_sequence_is_found_across_pieces() -> None:
    assert written(["END"], "one E", "N", "D two") == (["one ", "", "", ""], "END")


def test_buffered_text_that_is_not_a_sequence_is_written_later() -> None:
    assert written(["END"], "one E", "nd") == (["one ", "End", ""], None)


def test_buffered_text_is_written_at_the_end() -> None:
    assert written(["END"], "one EN") == (["one ", "EN"], None)


def test_overlapping_prefixes_are_buffered() -> None:
    assert written(["aab"], "xa", "a", "a", "b") == (["x", "", "a", "", ""], "aab")


@pytest.mark.parametrize("sequences", [["ab", "abc"], ["abc", "ab"]])
def test_the_earliest_and_longest_sequence_is_reported(sequences: list[str]) -> None:
    assert written([*sequences, "c"], "xabc") == (["x", ""], "abc")


def test_nothing_is_written_after_a_sequence() -> None:
    assert written(["\n"], "a\nb", "c") == (["a", "", ""], "\n")
