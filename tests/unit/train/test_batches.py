"""Packing changes where a sample stands, never what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from agentrl.train.batches import MicroBatch, pack
from agentrl.train.logprobs import check_model, check_sampling, sampled_logprobs
from agentrl.types import TrainingSample

MakeModel = Callable[[], Qwen3ForCausalLM]
MakeSample = Callable[..., TrainingSample]

LENGTHS = (8, 31, 9, 12, 30, 8, 17)


@pytest.fixture
def samples(make_sample: MakeSample) -> list[TrainingSample]:
    return [make_sample(length, seed=seed) for seed, length in enumerate(LENGTHS)]


def by_sample(batches: tuple[MicroBatch, ...], model: Qwen3ForCausalLM) -> dict[int, np.ndarray]:
    """Log-probs of each sample's sampled tokens."""
    found = {}
    for batch in batches:
        logprobs = sampled_logprobs(model, batch, temperature=0.7).logprobs_N.detach().numpy()
        for place, member in enumerate(batch.members):
            found[member] = logprobs[3 * place : 3 * place + 3]
    return found


@pytest.mark.parametrize("budget", [1, 40, 64, 1000])
def test_packed_logprobs_equal_those_of_each_sample_alone(
    samples: list[TrainingSample], make_model: MakeModel, budget: int
) -> None:
    model = make_model()
    packed = by_sample(pack(samples, budget=budget, aggregate="token_mean"), model)
    assert sorted(packed) == list(range(len(samples)))
    for index, sample in enumerate(samples):
        ids = torch.from_numpy(sample.ids).long()
        logits = model(ids[None]).logits[0, :-1] / 0.7
        every = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0].detach().numpy()
        np.testing.assert_allclose(packed[index], every[sample.loss_mask[1:]], atol=1e-5)


def test_samples_share_rows_and_the_budget_holds(samples: list[TrainingSample]) -> None:
    batches = pack(samples, budget=64, aggregate="token_mean")
    assert all(batch.num_tokens <= 64 for batch in batches)
    assert any(len(batch.members) > len(batch.ids_RT) for batch in batches)
    members = list(itertools.chain.from_iterable(batch.members for batch in batches))
    assert sorted(members) == list(range(len(samples)))


def test_a_sample_over_the_budget_gets_a_microbatch_of_its_own(make_sample: MakeSample) -> None:
    batches = pack(
        [make_sample(8), make_sample(50), make_sample(9)], budget=20, aggregate="token_mean"
    )
    assert [batch.members for batch in batches] == [(1,), (2, 0)]
    assert batches[0].num_tokens == 50


def test_no_samples_make_no_microbatches() -> None:
    assert pack([], budget=10, aggregate="token_mean") == ()


def test_what_stands_outside_of_the_mask_is_never_read(
    samples: list[TrainingSample],
) -> None:
    for sample in samples:
        sample.rollout_logprobs[~sample.loss_mask] = np.nan
        sample.advantages[~sample.loss_mask] = np.inf
    for batch in pack(samples, budget=64, aggregate="token_mean"):
        assert torch.isfinite(batch.tokens.logprobs_N).all()
        assert torch.isfinite(batch.tokens.advantages_N).all()


def test_weights_are_of_the_whole_batch(make_sample: MakeSample) -> None:
    uneven = [make_sample(12, sampled=(2,)), make_sample(12, sampled=(1, 2, 3, 4))]
    for aggregate, expected in (
        ("token_mean", [0.2] * 5),
        ("sequence_mean", [0.5, 0.125, 0.125, 0.125, 0.125]),
    ):
        for budget in (12, 24):
            batches = pack(uneven, budget=budget, aggregate=aggregate)
            weights = torch.cat([batch.tokens.weights_N for batch in batches])
            np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6)


def test_entropy_is_that_of_the_tempered_distribution(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    model, sample = make_model(), make_sample()
    (batch,) = pack([sample], budget=8, aggregate="token_mean")
    got = sampled_logprobs(model, batch, temperature=2.0).entropy_N
    logits = model(torch.from_numpy(sample.ids).long()[None]).logits[0, [2, 3, 5]] / 2.0
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(got, expected.detach())
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": 0.0, "top_p": 1.0, "top_k": 0}, r"rollout\.temperature: got 0\.0"),
        ({"temperature": 1.0, "top_p": 0.9, "top_k": 0}, r"rollout\.top_p.*got 0\.9 and 0"),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 5}, r"got 1\.0 and 5"),
    ],
)
def test_sampling_that_cannot_be_recomputed_is_refused(
    sampling: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_sampling(**sampling)


def test_a_model_with_more_than_a_linear_head_is_refused(make_model: MakeModel) -> None:
    model = make_model()
    check_model(model)
    head = model.forward
    model.forward = lambda *args, **kwargs: _scaled(head(*args, **kwargs))
    with pytest.raises(ValueError, match="Qwen3ForCausalLM gives log-probs that differ"):
        check_model(model)


def _scaled(output: object) -> object:
    output.logits = output.logits * 0.5  # type: ignore[attr-defined]
    return output
