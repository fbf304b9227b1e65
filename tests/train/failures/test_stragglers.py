from __future__ import annotations

from brim.train.failures.stragglers import Straggler, Stragglers

EVEN, NONE = (1.0, 1.02, 0.99, 1.01), (0.0, 0.0, 0.0, 0.0)


def feed(stragglers: Stragglers, busy: tuple[float, ...], steps: int) -> list[Straggler]:
    found = [stragglers.add(busy, NONE[: len(busy)]) for _ in range(steps)]
    return [s for s in found if s is not None]


def test_ranks_within_ten_percent_of_each_other_are_not_named() -> None:
    assert feed(Stragglers(20), EVEN, 100) == []
    assert feed(Stragglers(20), (1.0, 1.0, 1.09, 1.0), 100) == []


def test_a_rank_that_is_late_in_sixteen_of_twenty_steps_is_named_once() -> None:
    stragglers = Stragglers(20)
    assert feed(stragglers, EVEN, 4) == []
    (found,) = feed(stragglers, (1.0, 1.0, 1.5, 1.0), 30)
    assert (found.rank, found.late, found.steps) == (2, 16, 20)
    assert (found.busy, found.others) == (1.5, 1.0)
    assert "needs 1.5 s a step before it meets the others, who need 1 s" in str(found)
    assert "it computes slowly" in str(found)


def test_ranks_that_are_late_in_turn_are_not_named() -> None:
    stragglers = Stragglers(20)
    for step in range(100):
        busy = [1.0] * 4
        busy[step % 4] = 2.0
        assert stragglers.add(busy, NONE) is None


def test_a_rank_that_recovers_and_falls_behind_again_is_named_again() -> None:
    stragglers = Stragglers(5)
    late = (1.0, 3.0)
    assert [s.rank for s in feed(stragglers, late, 10)] == [1]
    assert feed(stragglers, (1.0, 1.0), 10) == []
    assert [s.rank for s in feed(stragglers, late, 10)] == [1]


def test_rows_that_come_late_are_told_from_slow_computing() -> None:
    stragglers = Stragglers(5)
    found = [stragglers.add((1.0, 2.0), (0.1, 0.9)) for _ in range(5)][-1]
    assert found is not None and "its rows come late" in str(found)


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert feed(Stragglers(2), (5.0,), 10) == []
