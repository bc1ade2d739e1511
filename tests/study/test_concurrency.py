"""How many cells run at once after memory ran out."""

from __future__ import annotations

from etude.study.concurrency import Concurrency


def begin(concurrency: Concurrency, *keys: str) -> None:
    for key in keys:
        concurrency.begin(key)


def test_as_many_as_there_are_slots_run_until_memory_runs_out() -> None:
    concurrency = Concurrency()
    begin(concurrency, "a", "b", "c", "d")
    assert concurrency.allow(4) == 4
    concurrency.run_out("a")
    assert concurrency.allow(4) == 3, "those that are left; it waits for one of them to end"
    concurrency.run_out("b")
    assert concurrency.allow(4) == 2


def test_a_neighbour_that_has_ended_was_a_neighbour() -> None:
    """Two that run out at the same time: the second one is alone when it is told."""
    concurrency = Concurrency()
    begin(concurrency, "a", "b")
    concurrency.run_out("a")
    assert concurrency.neighbours == {"b": 1}
    concurrency.run_out("b")
    assert concurrency.allow(12) == 1, "never none"
    concurrency.begin("a")
    assert concurrency.neighbours == {"a": 0}


def test_room_is_made_for_a_cell_that_runs_out_again_until_it_is_done() -> None:
    concurrency, others = Concurrency(), [str(number) for number in range(11)]
    begin(concurrency, *others)
    allowed = []
    for _ in range(5):
        concurrency.begin("large")
        concurrency.run_out("large")
        allowed.append(concurrency.allow(12))
    assert allowed == [11, 10, 8, 4, 1]
    concurrency.begin("large")
    concurrency.finish("large")
    assert concurrency.allow(12) == 11, "the room was for it alone"


def test_more_cells_run_again_after_a_while_and_each_time_later() -> None:
    """What took the memory may have ended; but to try it after every cell would make every other cell run out."""
    concurrency = Concurrency()
    begin(concurrency, "a", "b", "c")
    concurrency.run_out("a")
    waited = []
    for _ in range(3):
        count = 0
        while concurrency.allow(12) == 2:
            concurrency.finish(f"another {count}")
            count += 1
        waited.append(count)
        concurrency.begin("a")
        assert concurrency.allow(12) == 3
        concurrency.shortages.clear()
        concurrency.run_out("a")
    assert waited == [2, 4, 8]


def test_cells_that_are_not_to_run_claim_no_room() -> None:
    concurrency = Concurrency()
    begin(concurrency, "a", "b", "c", "d")
    for _ in range(2):
        concurrency.begin("a")
        concurrency.run_out("a")
    assert concurrency.allow(4) == 2
    concurrency.keep({"b", "c", "d"})
    assert concurrency.allow(4) == 3
