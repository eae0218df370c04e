"""Chunking of texts into passages: bounded, in order, complete, split at natural boundaries."""

import random

from tools.vectors.chunking import passages


def test_a_short_text_is_one_passage() -> None:
    assert passages("Hello there.", most_tokens=100, overlap_tokens=50) == ["Hello there."]


def test_every_word_is_in_a_passage_of_limited_length() -> None:
    dice = random.Random(3)
    for _ in range(50):
        most, words = dice.randrange(100, 400), [f"w{n}" for n in range(dice.randrange(1, 3000))]
        text = "".join(word + dice.choice([" ", "\n", ". ", "\n\n"]) for word in words)
        found = passages(text, most_tokens=most, overlap_tokens=dice.randrange(most // 2 + 1))
        assert all(len(passage) <= most * 4 for passage in found)
        assert set(" ".join(found).replace(".", " ").split()) >= set(words)
        positions = [text.index(passage) for passage in found]
        assert positions == sorted(positions)


def test_passages_end_at_paragraphs_where_possible() -> None:
    text = ("x" * 350 + "\n\n") * 3
    assert passages(text, most_tokens=100, overlap_tokens=0) == ["x" * 350] * 3


def test_a_text_without_white_space_is_split_as_well() -> None:
    assert passages("x" * 1000, most_tokens=100, overlap_tokens=0) == ["x" * 400, "x" * 400, "x" * 200]


def test_logographic_scripts_count_one_token_per_character() -> None:
    found = passages("語" * 250, most_tokens=100, overlap_tokens=0)
    assert [len(passage) for passage in found] == [100, 100, 50]


def test_blank_texts_have_no_passages() -> None:
    assert passages(" \n ", most_tokens=100, overlap_tokens=50) == []
