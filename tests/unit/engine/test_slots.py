"""The slot table never gives a slot to two sessions, and evicts only what rests."""

from agentrl.engine.slots import SlotTable, common_prefix


def test_slots_are_handed_out_lowest_first_until_none_is_left() -> None:
    table = SlotTable(2)
    assert table.lease("a", [1, 2]) == (0, 0)
    assert table.lease("b", [1, 2]) == (1, 0)
    assert not table.has_room
    assert table.lease("c", [1, 2]) is None


def test_a_resting_session_finds_its_slot_and_its_prefix() -> None:
    table = SlotTable(2)
    table.lease("a", [1, 2, 3])
    table.rest("a", [1, 2, 3, 4])
    assert table.resting_tokens == 4
    assert table.lease("a", [1, 2, 3, 4, 5, 6]) == (0, 4)
    table.rest("a", [1, 2, 3, 4, 5])
    assert table.lease("a", [1, 2, 9, 4, 5]) == (0, 2)


def test_the_last_id_is_always_left_to_compute() -> None:
    table = SlotTable(1)
    table.lease("a", [1, 2, 3])
    table.rest("a", [1, 2, 3, 4])
    assert table.lease("a", [1, 2, 3]) == (0, 2)


def test_the_longest_rested_session_is_evicted_but_never_a_spared_one() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.lease(name, [1])
    for name in "bac":
        table.rest(name, [1])
    assert table.lease("d", [1], spared={"b"}) == (0, 0)  # a
    assert table.lease("e", [1], spared={"b", "c"}) is None
    assert table.lease("e", [1]) == (1, 0)  # b
    assert table.lease("c", [1, 2]) == (2, 1)


def test_release_frees_and_forgets() -> None:
    table = SlotTable(2)
    table.lease("a", [1])
    table.lease("b", [1])
    table.rest("a", [1])
    table.release("a")
    table.release("never seen")
    assert table.resting_tokens == 0
    assert table.lease("a", [1, 2]) == (0, 0)


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([1, 2, 3], [1, 5, 3]) == 1
    assert common_prefix([2], [1]) == 0
