"""The index of prompt beginnings finds what is there, and never what is not there any more."""

from agentrl.engine.prefixes import Prefix, PrefixIndex

PROMPT = list(range(10, 40))


def index_with(prompts: dict[int, list[int]]) -> PrefixIndex:
    index = PrefixIndex(block_tokens=4)
    for slot, ids in prompts.items():
        index.add(slot, ids, index.names(ids))
    return index


def found(index: PrefixIndex, ids: list[int]) -> Prefix | None:
    return index.find(ids, index.names(ids))


def test_all_but_the_last_id_of_an_equal_prompt_is_found() -> None:
    assert found(index_with({3: PROMPT}), list(PROMPT)) == Prefix(3, 29)


def test_the_longest_common_beginning_is_found_to_the_id() -> None:
    index = index_with({0: PROMPT[:9], 1: [*PROMPT[:18], 0, 0], 2: PROMPT[:13]})
    assert found(index, PROMPT) == Prefix(1, 18)


def test_less_than_a_block_is_not_looked_for() -> None:
    assert found(index_with({0: PROMPT}), [*PROMPT[:3], 0, 0, 0]) is None
    assert found(index_with({0: PROMPT}), PROMPT[:4]) is None, "its last id is wanted"


def test_names_find_candidates_and_ids_decide() -> None:
    index = PrefixIndex(block_tokens=4)
    index.add(0, PROMPT, index.names([0, *PROMPT[1:]]))
    assert index.find([0, *PROMPT[1:]], index.names([0, *PROMPT[1:]])) is None


def test_a_slot_that_is_cut_keeps_its_beginning() -> None:
    index = index_with({0: PROMPT})
    index.cut(0, 10)
    assert found(index, PROMPT) == Prefix(0, 10)
    index.cut(0, 2)
    assert found(index, PROMPT) is None
    index.cut(0, 0)


def test_a_slot_that_holds_another_prompt_is_not_found_by_the_first() -> None:
    index = index_with({0: PROMPT, 1: PROMPT})
    index.add(0, [1] * 20, index.names([1] * 20))
    assert found(index, PROMPT) == Prefix(1, 29)
    index.clear()
    assert found(index, PROMPT) is None
