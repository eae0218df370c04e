"""Sealed content: only this server opens it, for the team that it was sealed for, whichever key was the first then."""

import pytest
from cryptography.fernet import Fernet

from kernel.crypto import InvalidToken, Seals

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
TEAM = {"team_id": "team_a", "purpose": "reasoning"}


def test_it_opens_what_it_has_sealed() -> None:
    seals = Seals([NEW])
    token = seals.seal(b"thoughts", **TEAM)
    assert token.startswith("s1.")
    assert seals.unseal(token, **TEAM) == b"thoughts"


def test_the_same_words_never_look_the_same() -> None:
    seals = Seals([NEW])
    assert seals.seal(b"thoughts", **TEAM) != seals.seal(b"thoughts", **TEAM)


def test_words_that_repeat_themselves_are_compressed() -> None:
    assert len(Seals([NEW]).seal(b"so " * 10_000, **TEAM)) < 300


@pytest.mark.parametrize(
    "stranger", [{"team_id": "team_b", "purpose": "reasoning"}, {"team_id": "team_a", "purpose": "compaction"}]
)
def test_it_opens_for_no_other_team_and_no_other_purpose(stranger: dict[str, str]) -> None:
    seals = Seals([NEW])
    token = seals.seal(b"thoughts", **TEAM)
    with pytest.raises(InvalidToken):
        seals.unseal(token, **stranger)


def test_an_older_key_still_opens_and_the_first_one_seals() -> None:
    before, after = Seals([OLD]), Seals([NEW, OLD])
    assert after.unseal(before.seal(b"thoughts", **TEAM), **TEAM) == b"thoughts"
    assert Seals([NEW]).unseal(after.seal(b"thoughts", **TEAM), **TEAM) == b"thoughts"


@pytest.mark.parametrize("token", ["", "s1.", "s1.AAAA", "s1.é", "s2.AAAAAAAAAAAAAAAAAAAAAAAA", "gAAAAABm", "s1.%%%%"])
def test_what_was_never_sealed_does_not_open(token: str) -> None:
    with pytest.raises(InvalidToken):
        Seals([NEW]).unseal(token, **TEAM)


def test_what_was_changed_does_not_open() -> None:
    seals = Seals([NEW])
    token = seals.seal(b"thoughts", **TEAM)
    other = "A" if token[20] != "A" else "B"
    with pytest.raises(InvalidToken):
        seals.unseal(token[:20] + other + token[21:], **TEAM)
