"""Passages: bounded, in order, with nothing lost, and cut where a reader would cut."""

import random

from responses.vectors.chunking import passages


def test_a_short_text_is_one_passage() -> None:
    assert passages("Hello there.", most_tokens=100, overlap_tokens=50) == ["Hello there."]


def test_every_word_stands_in_a_passage_that_is_not_too_long() -> None:
    dice = random.Random(3)
    for _ in range(50):
        most, words = dice.randrange(100, 400), [f"w{n}" for n in range(dice.randrange(1, 3000))]
        text = "".join(word + dice.choice([" ", "\n", ". ", "\n\n"]) for word in words)
        found = passages(text, most_tokens=most, overlap_tokens=dice.randrange(most // 2 + 1))
        assert all(len(passage) <= most * 4 for passage in found)
        assert set(" ".join(found).replace(".", " ").split()) >= set(words)
        positions = [text.index(passage) for passage in found]
        assert positions == sorted(positions)


def test_passages_end_with_paragraphs_where_they_can() -> None:
    text = ("x" * 350 + "\n\n") * 3
    assert passages(text, most_tokens=100, overlap_tokens=0) == ["x" * 350] * 3


def test_a_text_without_blanks_is_cut_all_the_same() -> None:
    assert passages("x" * 1000, most_tokens=100, overlap_tokens=0) == ["x" * 400, "x" * 400, "x" * 200]


def test_scripts_without_letters_have_a_token_for_each_character() -> None:
    found = passages("語" * 250, most_tokens=100, overlap_tokens=0)
    assert [len(passage) for passage in found] == [100, 100, 50]


def test_blank_texts_have_no_passages() -> None:
    assert passages(" \n ", most_tokens=100, overlap_tokens=50) == []
