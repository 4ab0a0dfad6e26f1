"""Blocks: right-aligned ids, the spare position for padding, and rows read where they lie."""

import torch

from agentrl.engine.kv_cache import KVCache, Work

SPARE = 40


def cache() -> KVCache:
    return KVCache(num_slots=8, context_tokens=40, dtype=torch.float32, device=torch.device("cpu"))


def test_rows_are_aligned_right_and_padding_goes_to_the_spare_position() -> None:
    slots = cache()
    block = slots.block([Work(6, 10, [1, 2, 3]), Work(2, 0, [9])])
    assert block.ids.tolist() == [[1, 2, 3], [0, 0, 9]]
    assert block.positions.tolist() == [[10, 11, 12], [0, 0, 0]]
    assert block.writes.tolist() == [[10, 11, 12], [SPARE, SPARE, 0]]
    assert block.slots.tolist() == [6, 2]
    assert block.rows.tolist() == [0, 1]
    assert not block.is_dense
    assert not block.is_fresh
    mask = slots.mask(block, slots.span(block))
    assert mask.shape == (2, 1, 3, 16)
    assert (mask == 0).sum(-1)[:, 0].tolist() == [[11, 12, 13], [1, 1, 1]]


def test_a_fresh_block_looks_at_itself_and_padding_only_at_padding() -> None:
    slots = cache()
    block = slots.block([Work(6, 0, [1, 2, 3]), Work(2, 0, [8, 9])])
    assert block.is_fresh
    visible = slots.fresh_mask(block)[:, 0] == 0
    assert visible[0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert visible[1].tolist() == [[True, False, False], [False, True, False], [False, True, True]]


def test_attention_spans_the_longest_row_rounded_up_but_never_the_spare_position() -> None:
    slots = cache()
    spans = [slots.span(slots.block([Work(0, start, [1])])) for start in (15, 16, 33)]
    assert spans == [16, 32, 40]


def test_single_ids_of_neighbouring_slots_make_a_dense_block() -> None:
    block = cache().block([Work(3, 7, [5]), Work(0, 1, [4]), Work(1, 2, [6])])
    assert block.is_dense
    assert block.slots.tolist() == [0, 1, 2, 3]
    assert block.rows.tolist() == [3, 0, 1]
    assert block.lengths.tolist() == [2, 3, 1, 8]
    assert block.ids.tolist() == [[4], [6], [0], [5]]
    assert block.writes.tolist() == [[1], [2], [SPARE], [7]]
    assert not cache().block([Work(7, 0, [1]), Work(0, 0, [1])]).is_dense


def test_what_was_stored_is_read_back_by_dense_and_sparse_blocks_alike() -> None:
    slots = cache()
    keys = torch.randn(3, 2, 1, 4)
    work = [Work(slot, 3, [1]) for slot in (0, 1, 2)]
    dense = slots.block(work)
    slots.store(0, dense, keys, keys * 2)
    seen, _ = slots.rows(0, dense, 16)
    torch.testing.assert_close(seen[:, :, 3], keys[:, :, 0])
    sparse = slots.block([Work(2, 4, [1, 1]), Work(0, 4, [1])])
    slots.store(0, sparse, torch.ones(2, 2, 2, 4), torch.ones(2, 2, 2, 4))
    seen_keys, seen_values = slots.rows(0, sparse, 16)
    torch.testing.assert_close(seen_keys[:, :, 3], keys[[2, 0], :, 0])
    torch.testing.assert_close(seen_values[:, :, 3], 2 * keys[[2, 0], :, 0])
    assert seen_keys[0, :, 4:6].eq(1).all()
    assert seen_keys[1, :, 4].eq(1).all()
    assert seen_keys[1, :, 5].eq(0).all(), "padding was written into the context"
    alone, _ = slots.slot(0, 2, 6)
    torch.testing.assert_close(alone, seen_keys[:1, :, :6])
