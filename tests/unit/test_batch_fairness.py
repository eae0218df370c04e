"""Fair distribution of the slots of a worker among batches."""

from gateway.batches.queue import BatchLoad, allot


def load(batch_id: str, team_id: str, running: int = 0) -> BatchLoad:
    return BatchLoad(batch_id=batch_id, team_id=team_id, running=running)


def test_the_team_with_the_fewest_running_lines_comes_first() -> None:
    loads = [load("a1", "a", running=2), load("a2", "a"), load("b1", "b")]
    assert allot(loads, slots=2, batch_limit=10) == {"b1": 2}
    assert allot(loads, slots=4, batch_limit=10) == {"b1": 3, "a1": 1}


def test_the_oldest_batch_of_a_team_comes_first_up_to_the_limit_of_a_batch() -> None:
    loads = [load("a1", "a", running=1), load("a2", "a")]
    assert allot(loads, slots=10, batch_limit=3) == {"a1": 2, "a2": 3}


def test_a_team_with_many_batches_leaves_half_of_the_slots_to_another() -> None:
    loads = [*(load(f"a{number}", "a") for number in range(30)), load("b1", "b")]
    counts = allot(loads, slots=20, batch_limit=32)
    assert (counts["b1"], sum(counts.values())) == (10, 20)


def test_a_team_with_a_higher_weight_gets_more_lines() -> None:
    loads = [BatchLoad(batch_id="a1", team_id="a", running=0, weight=3), load("b1", "b")]
    assert allot(loads, slots=8, batch_limit=32) == {"a1": 6, "b1": 2}
