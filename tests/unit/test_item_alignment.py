"""Alignment of the items of two responses, and excerpts around the differences of two texts."""

import time

import pytest

from responses.admin.compare.alignment import MAX_ALIGNED, ComparedItem, align
from responses.admin.compare.excerpts import MAX_EXCERPT, Excerpt, differences


def items(*labels: str) -> list[ComparedItem]:
    """Return items from `kind/name/text`."""
    parts = (label.split("/") for label in labels)
    return [
        ComparedItem(number=number, kind=kind, name=name, text=text)
        for number, (kind, name, text) in enumerate(parts, 1)
    ]


def shape(left: list[ComparedItem], right: list[ComparedItem]) -> list[str]:
    """Return the pairs as `1=1` for equal items, `2~3` for different ones and `4-` or `-4` for single ones."""
    shapes = []
    for pair in align(left, right).pairs:
        numbers = [str(item.number) if item else "" for item in (pair.left, pair.right)]
        shapes.append(("=" if pair.is_same else "~" if all(numbers) else "-").join(numbers))
    return shapes


def test_equal_items_are_paired() -> None:
    both = items("message user//Hi", "function_call/look/{}")
    assert shape(both, both) == ["1=1", "2=2"]


def test_an_inserted_item_moves_only_the_items_behind_it() -> None:
    left = items("message user//Hi", "function_call/look/{}", "message assistant//Bye")
    right = items("message user//Hi", "reasoning//Hm", "function_call/look/{}", "message assistant//Bye")
    assert shape(left, right) == ["1=1", "-2", "2=3", "3=4"]


def test_items_with_other_content_are_paired_by_name_before_kind() -> None:
    left = items("function_call/look/1", "function_call/send/1")
    right = items(
        "function_call/send/2",
    )
    assert shape(left, right) == ["1-", "2~1"]
    assert shape(items("function_call/look/1"), items("function_call/send/1")) == ["1~1"]


def test_items_of_different_kinds_are_never_paired() -> None:
    assert shape(items("message user//Hi"), items("reasoning//Hi")) == ["1-", "-1"]


def test_one_side_may_be_empty() -> None:
    assert shape([], items("message user//Hi")) == ["-1"]
    assert shape(items("message user//Hi"), []) == ["1-"]


def test_hundreds_of_different_items_are_bounded() -> None:
    left = items(*(f"message user//{number}" for number in range(900)))
    right = items(*(f"message user//{-number}" for number in range(1, 901)))
    started = time.perf_counter()
    alignment = align(left, right)
    assert time.perf_counter() - started < 5
    assert alignment.skipped == (900 - MAX_ALIGNED, 900 - MAX_ALIGNED)


def test_a_difference_behind_hundreds_of_equal_items_is_aligned() -> None:
    labels = [f"message user//{number}" for number in range(900)]
    alignment = align(items(*labels, "message assistant//A"), items(*labels, "message assistant//B"))
    assert [pair.is_same for pair in alignment.pairs] == [True] * 900 + [False]
    assert alignment.skipped == (0, 0)


def marked(excerpt: Excerpt) -> list[str]:
    return [segment.text for segment in excerpt.segments if segment.is_marked]


@pytest.mark.parametrize(
    ("left", "right", "marks"),
    [
        ("The parcel is late.", "The parcel is here.", (["late"], ["here"])),
        ("same", "same and more", ([], [" and more"])),
        ("", "new", ([], ["new"])),
        ("aa", "a", (["aa"], ["a"])),
    ],
)
def test_differing_words_are_marked(left: str, right: str, marks: tuple[list[str], list[str]]) -> None:
    first, second = differences(left, right)
    assert (marked(first), marked(second)) == marks
    assert "".join(segment.text for segment in first.segments) == left
    assert "".join(segment.text for segment in second.segments) == right


def test_a_difference_deep_in_a_long_text_is_shown() -> None:
    text = "Where is the parcel? " * 50_000
    first, second = differences(text + "Late." + text, text + "Here." + text)
    assert (marked(first), marked(second)) == (["Late"], ["Here"])
    assert first.before > 1_000_000
    assert first.after > 1_000_000


def test_excerpts_of_texts_without_anything_in_common_are_bounded() -> None:
    first, _ = differences("a" * 1_000_000, "b" * 1_000_000)
    assert sum(len(segment.text) for segment in first.segments) == MAX_EXCERPT
    assert first.after == 1_000_000 - MAX_EXCERPT
