"""Packing of demonstrations, and the supervised steps over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen3ForCausalLM

from agentrl.config.sections import WarmupSection
from agentrl.train.optimizer import NonFiniteError
from agentrl.train.warmup import PackedRow, Warmup, pack_rows, stack

MakeModel = Callable[[], Qwen3ForCausalLM]


def demonstration(*ids: int, policy: Sequence[int] = ()) -> PackedRow:
    mask = np.zeros(len(ids), dtype=np.bool_)
    mask[list(policy)] = True
    return PackedRow(ids=np.array(ids, dtype=np.int32), loss_mask=mask)


def endless(seed: int = 0) -> Iterator[PackedRow]:
    """The policy repeats the token it was shown."""
    rng = np.random.default_rng(seed)
    while True:
        shown = int(rng.integers(2, 20))
        yield demonstration(0, shown, 1, shown, 21, policy=(3, 4))


def section(**changes: object) -> WarmupSection:
    return WarmupSection.model_validate(
        {"steps": 30, "batch_tokens": 96, "row_tokens": 24, "learning_rate": 2e-2, **changes}
    )


def test_rows_are_full_and_a_cut_demonstration_does_not_go_on_in_the_next() -> None:
    given = iter(
        [
            demonstration(1, 2, 3, policy=(2,)),
            demonstration(4, 5, 6, policy=(1, 2)),
            demonstration(7, 8, 9, 10, policy=(3,)),
            demonstration(11, 12, 13),
        ]
    )
    rows = list(pack_rows(given, 5))
    assert [row.ids.tolist() for row in rows] == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]]
    assert [np.flatnonzero(row.loss_mask).tolist() for row in rows] == [[2, 4], [3]]


def test_the_loss_is_the_mean_over_the_policys_tokens_and_sees_earlier_demonstrations(
    make_model: MakeModel,
) -> None:
    model = make_model()
    rows = list(itertools.islice(pack_rows(endless(), 24), 3))
    batch = stack(rows)
    got = Warmup(model, section()).gradients(batch)
    with torch.no_grad():
        logprobs = model(batch.ids_RT).logits.log_softmax(-1)
    expected = [
        -logprobs[row, at - 1, batch.ids_RT[row, at]].item()
        for row, at in batch.has_loss_RT.nonzero().tolist()
    ]
    assert len(expected) == batch.num_loss_tokens
    assert got == pytest.approx(np.mean(expected), rel=1e-5)


def test_it_learns_and_reports_each_step(make_model: MakeModel) -> None:
    steps = list(Warmup(make_model(), section()).run(endless()))
    assert [step.step for step in steps] == list(range(1, 31))
    assert steps[-1].loss < 0.6 * steps[0].loss
    assert steps[0].learning_rate == pytest.approx(1e-3)
    assert steps[-1].learning_rate == pytest.approx(2e-2 * 0.05)


def test_it_can_be_left_between_two_steps(make_model: MakeModel) -> None:
    model = make_model()
    steps = Warmup(model, section()).run(endless())
    assert next(steps).step == 1
    kept = model.model.norm.weight.detach().clone()
    steps.close()
    torch.testing.assert_close(model.model.norm.weight, kept, rtol=0, atol=0)


def test_two_replicas_that_average_equal_one_with_both_shares(make_model: MakeModel) -> None:
    rows = list(itertools.islice(pack_rows(endless(), 24), 4))
    whole = make_model()
    together = Warmup(whole, section())
    together.apply(1, together.gradients(stack(rows)))

    halves = [stack(rows[:1]), stack(rows[1:])]
    replicas = [make_model(), make_model()]
    warmups = [Warmup(model, section()) for model in replicas]
    losses = [w.gradients(half) for w, half in zip(warmups, halves, strict=True)]
    counts = [half.num_loss_tokens for half in halves]
    for pair in zip(*(model.parameters() for model in replicas), strict=True):
        mean = sum(p.grad * n for p, n in zip(pair, counts, strict=True)) / sum(counts)
        for parameter in pair:
            parameter.grad = mean.clone()
    for warmup, loss in zip(warmups, losses, strict=True):
        warmup.apply(1, loss)
    for one, other in zip(whole.parameters(), replicas[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_every_replica_takes_its_share_and_averages_each_step(make_model: MakeModel) -> None:
    calls: list[int] = []

    def average(parameters: Sequence[nn.Parameter], num_tokens: int) -> None:
        assert all(parameter.grad is not None for parameter in parameters)
        calls.append(num_tokens)

    warmup = Warmup(make_model(), section(steps=3))
    list(warmup.run(endless(), num_replicas=2, average=average))
    # Two rows of 24 tokens, in which 4 demonstrations of two policy tokens fit whole.
    assert len(calls) == 3
    assert all(16 <= count <= 20 for count in calls)


def test_running_out_of_demonstrations_is_said(make_model: MakeModel) -> None:
    few = itertools.islice(endless(), 30)
    with pytest.raises(ValueError, match="warmup: the environment gives no more demonstrations"):
        list(Warmup(make_model(), section()).run(few))


def test_rows_too_short_for_any_answer_are_said(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match=r"warmup\.row_tokens: got 3, wanted more"):
        list(Warmup(make_model(), section(row_tokens=3)).run(endless()))


def test_a_gradient_that_is_not_finite_names_the_step(make_model: MakeModel) -> None:
    model = make_model()
    model.model.norm.weight.register_hook(lambda grad: grad * torch.inf)
    with pytest.raises(NonFiniteError, match=r"warm-up step 1, loss [\d.]+: the gradient"):
        next(Warmup(model, section()).run(endless()))
