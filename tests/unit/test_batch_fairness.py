"""Which batches the next lines are taken from."""

from responses.batches.queue import BatchLoad, shares


def waiting(batch_id: str, team_id: str, running: int = 0) -> BatchLoad:
    return BatchLoad(batch_id=batch_id, team_id=team_id, running=running)


def test_the_team_with_fewest_lines_under_way_comes_next() -> None:
    given = [waiting("a1", "a", running=2), waiting("a2", "a"), waiting("b1", "b")]
    assert shares(given, room=2, most=10) == {"b1": 2}
    assert shares(given, room=4, most=10) == {"b1": 3, "a1": 1}


def test_the_oldest_batch_of_a_team_comes_first_until_it_has_as_many_as_it_may() -> None:
    given = [waiting("a1", "a", running=1), waiting("a2", "a")]
    assert shares(given, room=10, most=3) == {"a1": 2, "a2": 3}


def test_a_team_with_a_thousand_lines_leaves_half_of_the_room_to_another() -> None:
    given = [*(waiting(f"a{number}", "a") for number in range(30)), waiting("b1", "b")]
    share = shares(given, room=20, most=32)
    assert (share["b1"], sum(share.values())) == (10, 20)
