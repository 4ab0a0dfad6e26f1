"""One optimizer step: its gradient, its report, what it refuses, and that it can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from agentrl.config.sections import TrainSection
from agentrl.train.batches import pack
from agentrl.train.logprobs import sampled_logprobs
from agentrl.train.losses import ppo_clip_loss
from agentrl.train.optimizer import NonFiniteError
from agentrl.train.report import result_of
from agentrl.train.trainer import Trainer
from agentrl.types import TrainingSample

MakeModel = Callable[[], Qwen3ForCausalLM]
MakeSample = Callable[..., TrainingSample]


def section(**changes: Any) -> TrainSection:
    return TrainSection.model_validate(
        {
            "steps": 10,
            "groups_per_step": 1,
            "microbatch_tokens": 40,
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
            **changes,
        }
    )


def batch(make_sample: MakeSample, *, step: int = 0) -> list[TrainingSample]:
    """Uneven rows with uneven shares of sampled tokens."""
    return [
        make_sample(9, seed=10 * step + 1, sampled=(4,), advantage=1.5),
        make_sample(30, seed=10 * step + 2, sampled=tuple(range(5, 30)), advantage=-0.5),
        make_sample(17, seed=10 * step + 3, sampled=(2, 3, 9, 16), advantage=0.7),
        make_sample(12, seed=10 * step + 4, sampled=(1, 11), advantage=-1.0),
    ]


def gradient(
    model: Qwen3ForCausalLM, samples: list[TrainingSample], train: TrainSection
) -> dict[str, torch.Tensor]:
    for micro in pack(samples, budget=train.microbatch_tokens, aggregate=train.loss.aggregate):
        logprobs = sampled_logprobs(model, micro, temperature=1.0).logprobs_N
        ppo_clip_loss(
            train.loss, logprobs_N=logprobs, tokens=micro.tokens, ref_logprobs_N=None
        ).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean"])
def test_the_gradient_does_not_depend_on_the_cut_into_microbatches(
    make_model: MakeModel, make_sample: MakeSample, aggregate: str
) -> None:
    loss = {"type": "ppo_clip", "aggregate": aggregate}
    gradients = [
        gradient(make_model(), batch(make_sample), section(microbatch_tokens=budget, loss=loss))
        for budget in (1, 40, 1000)
    ]
    for other in gradients[1:]:
        for name, expected in gradients[0].items():
            torch.testing.assert_close(other[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_shares_of_replicas_add_up_to_the_step_of_one(
    make_model: MakeModel, make_sample: MakeSample, size: int
) -> None:
    """Of unequal shares too, some of them empty; the reports come together as well."""
    samples = batch(make_sample)
    alone = Trainer(whole := make_model(), section(), temperature=1.0)
    expected = alone.step(samples)

    models = [make_model() for _ in range(size)]
    trainers = [Trainer(model, section(), temperature=1.0) for model in models]
    shares = [t.accumulate(samples, rank=rank, size=size) for rank, t in enumerate(trainers)]
    assert sorted(place for share in shares for place in share.samples) == [0, 1, 2, 3]
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        gradients = [p.grad for p in parameters if p.grad is not None]
        total = torch.stack(gradients).sum(0)
        for parameter in parameters:
            parameter.grad = total.clone()
    applied = [trainer.apply(has_samples=True) for trainer in trainers]

    got = result_of(shares, applied[0])
    assert got.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
    assert [s.trajectory_id for s in got.samples] == [s.trajectory_id for s in samples]
    for model in models:
        for one, other in zip(whole.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_discarded_share_leaves_no_trace(make_model: MakeModel, make_sample: MakeSample) -> None:
    samples = batch(make_sample)
    once, twice = (Trainer(make_model(), section(), temperature=1.0) for _ in range(2))
    twice.accumulate(samples, rank=0, size=2)
    twice.discard()
    first, second = once.step(samples), twice.step(samples)
    assert first.metrics == second.metrics


def test_the_gradient_is_the_slope_of_the_loss(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    model = make_model()
    samples = [make_sample(9, seed=1, advantage=1.5), make_sample(12, seed=2, advantage=-0.5)]
    # Sampled at the model's own log-probs, nudged, so that ratios are off 1 but inside the bounds.
    for sample in samples:
        (alone,) = pack([sample], budget=99, aggregate="token_mean")
        own = sampled_logprobs(model, alone, temperature=1.0).logprobs_N.detach().numpy()
        sample.rollout_logprobs[sample.loss_mask] = own + np.array([0.1, -0.1, 0.05])
    (micro,) = pack(samples, budget=99, aggregate="token_mean")
    train = section(microbatch_tokens=99)

    @torch.no_grad()
    def loss() -> float:
        logprobs = sampled_logprobs(model, micro, temperature=1.0).logprobs_N
        return float(
            ppo_clip_loss(
                train.loss, logprobs_N=logprobs, tokens=micro.tokens, ref_logprobs_N=None
            ).loss
        )

    # Along its own gradient a parameter's slope is the gradient's length: far above rounding.
    for name, slope in gradient(model, samples, train).items():
        parameter, length = model.get_parameter(name), float(slope.norm())
        kept, nudge = parameter.detach().clone(), 1e-2 * slope / length
        parameter.data = kept + nudge
        above = loss()
        parameter.data = kept - nudge
        below = loss()
        parameter.data = kept
        assert (above - below) / 2e-2 == pytest.approx(length, rel=1e-2), name


def test_a_step_raises_what_did_well_and_lowers_what_did_badly(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    good, bad = make_sample(9, seed=1, advantage=1.0), make_sample(9, seed=2, advantage=-1.0)
    trainer = Trainer(make_model(), section(), temperature=1.0)
    first = on_policy(trainer, [good, bad])
    before, after = first.samples, trainer.step([good, bad]).samples
    assert after[0].trainer_logprobs.sum() > before[0].trainer_logprobs.sum()
    assert after[1].trainer_logprobs.sum() < before[1].trainer_logprobs.sum()


def on_policy(trainer: Trainer, samples: list[TrainingSample]) -> Any:
    """A step whose rollout log-probs are the trainer's own."""
    model = trainer._model
    for sample in samples:
        (alone,) = pack([sample], budget=99, aggregate="token_mean")
        own = sampled_logprobs(model, alone, temperature=1.0).logprobs_N
        sample.rollout_logprobs[sample.loss_mask] = own.detach().numpy()
    return trainer.step(samples)


def test_on_policy_the_report_agrees_to_the_token(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    result = on_policy(Trainer(make_model(), section(), temperature=1.0), batch(make_sample))
    assert result.step == 1
    metrics = result.metrics
    assert metrics["logprob_diff_max"] < 1e-5
    assert metrics["importance_ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["importance_ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-8)
    assert metrics["learning_rate"] == pytest.approx(0.5e-2)
    assert metrics["sampled_tokens"] == 32
    assert 0 <= metrics["padding_fraction"] < 0.5


def test_the_report_shows_each_sample_in_its_own_columns(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    samples = batch(make_sample)
    model = make_model()
    result = Trainer(model, section(optimizer={"learning_rate": 1e-9}), temperature=1.0).step(
        samples
    )
    assert [s.trajectory_id for s in result.samples] == [s.trajectory_id for s in samples]
    for sample, trained in zip(samples, result.samples, strict=True):
        (alone,) = pack([sample], budget=99, aggregate="token_mean")
        own = sampled_logprobs(model, alone, temperature=1.0).logprobs_N.detach().numpy()
        mask = sample.loss_mask
        np.testing.assert_allclose(trained.trainer_logprobs[mask], own, atol=1e-5)
        np.testing.assert_allclose(
            trained.importance_ratios[mask], np.exp(own - sample.rollout_logprobs[mask]), rtol=1e-4
        )
        for column in (trained.trainer_logprobs, trained.importance_ratios, trained.is_clipped):
            assert len(column) == len(sample)
            assert not column[~mask].any()
        np.testing.assert_array_equal(trained.advantages, sample.advantages)


def test_nan_outside_of_the_mask_is_harmless(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    def weights_after(outside: float) -> Mapping[str, np.ndarray]:
        trainer = Trainer(make_model(), section(), temperature=1.0)
        samples = batch(make_sample)
        for sample in samples:
            sample.rollout_logprobs[~sample.loss_mask] = outside
        trainer.step(samples)
        return trainer.weights()

    clean, dirty = weights_after(0.0), weights_after(np.nan)
    for name, value in clean.items():
        np.testing.assert_array_equal(value, dirty[name])


@pytest.mark.parametrize("column", ["rollout_logprobs", "advantages"])
def test_nan_inside_of_the_mask_ends_the_step_and_names_the_trajectory(
    make_model: MakeModel, make_sample: MakeSample, column: str
) -> None:
    trainer = Trainer(make_model(), section(), temperature=1.0)
    samples = batch(make_sample)
    before = trainer.weights()
    getattr(samples[2], column)[9] = np.nan
    with pytest.raises(NonFiniteError, match=f"step 1: {column} is nan at .* trajectory t3"):
        trainer.step(samples)
    assert trainer.steps_done == 0
    for name, value in trainer.weights().items():
        np.testing.assert_array_equal(value, before[name])
    trainer.step(batch(make_sample))


def test_weights_that_became_nan_are_named_by_what_they_spoil(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    model = make_model()
    trainer = Trainer(model, section(), temperature=1.0)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match="step 1: trainer_logprobs is nan"):
        trainer.step(batch(make_sample))


def test_a_gradient_that_is_not_finite_names_its_parameters(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    model = make_model()
    trainer = Trainer(model, section(), temperature=1.0)
    handle = model.model.norm.weight.register_hook(lambda grad: grad * torch.nan)
    with pytest.raises(NonFiniteError, match=r"step 1: the gradient .* \['model\.norm\.weight'\]"):
        trainer.step(batch(make_sample))
    handle.remove()
    assert np.isfinite(trainer.step(batch(make_sample)).metrics["grad_norm"])


def test_a_step_without_samples_counts_and_changes_nothing(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    trainer = Trainer(make_model(), section(), temperature=1.0)
    before = trainer.weights()
    result = trainer.step([])
    assert (result.step, result.samples, result.metrics["samples"]) == (1, (), 0)
    for name, value in trainer.weights().items():
        np.testing.assert_array_equal(value, before[name])
    second = trainer.step(batch(make_sample))
    assert second.step == 2
    assert second.metrics["learning_rate"] == pytest.approx(1e-2)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_five_steps_and_five_more_equal_ten(
    make_model: MakeModel, make_sample: MakeSample, kl_coef: float
) -> None:
    train = section(loss={"type": "ppo_clip", "kl_coef": kl_coef})
    straight = Trainer(make_model(), train, temperature=1.0)
    for step in range(10):
        straight.step(batch(make_sample, step=step))

    first = Trainer(make_model(), train, temperature=1.0)
    for step in range(5):
        first.step(batch(make_sample, step=step))
    weights, state = first.weights(), first.state()
    first.step(batch(make_sample, step=9))

    model = make_model()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    second = Trainer(model, train, temperature=1.0)
    second.load_state(state)
    for step in range(5, 10):
        result = second.step(batch(make_sample, step=step))

    assert result.step == second.steps_done == 10
    for name, value in straight.weights().items():
        np.testing.assert_array_equal(second.weights()[name], value)


def test_a_penalty_cannot_be_added_to_a_run_that_began_without(make_model: MakeModel) -> None:
    state = Trainer(make_model(), section(), temperature=1.0).state()
    penalized = section(loss={"type": "ppo_clip", "kl_coef": 0.1})
    with pytest.raises(ValueError, match=r"train\.loss\.kl_coef: the checkpoint holds no refer"):
        Trainer(make_model(), penalized, temperature=1.0).load_state(state)


def test_the_penalty_is_zero_at_the_start_and_grows(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    train = section(loss={"type": "ppo_clip", "kl_coef": 0.1})
    trainer = Trainer(make_model(), train, temperature=1.0)
    first = trainer.step(batch(make_sample)).metrics["ref_kl"]
    assert first == pytest.approx(0, abs=1e-8)
    assert trainer.step(batch(make_sample)).metrics["ref_kl"] > 1e-5


def test_weights_name_tied_parameters_once_and_are_a_copy(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    model = make_model()
    trainer = Trainer(model, section(), temperature=1.0)
    weights = trainer.weights()
    assert list(weights) == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in weights
    kept = {name: value.copy() for name, value in weights.items()}
    trainer.step(batch(make_sample))
    for name, value in kept.items():
        np.testing.assert_array_equal(weights[name], value)


def test_half_precision_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match=r"model\.dtype: got torch\.bfloat16, wanted float32"):
        Trainer(make_model().bfloat16(), section(), temperature=1.0)


def test_replayed_samples_are_weighed_by_their_own_policy_and_told_apart(
    make_model: MakeModel, make_sample: MakeSample
) -> None:
    fresh = make_sample(9, seed=1, sampled=(4, 5), rollout_logprob=-3.0)
    old = make_sample(9, seed=2, sampled=(4, 5, 6), rollout_logprob=-9.0, is_replayed=True)
    trainer = Trainer(make_model(), section(replay={"ratio_max": 1.5}), temperature=1.0)
    result = trainer.step([fresh, old])
    both = result.samples
    for sample, logprob in zip(both, (-3.0, -9.0), strict=True):
        sampled = sample.trainer_logprobs != 0
        ratios = np.exp(sample.trainer_logprobs[sampled] - logprob)
        assert sample.importance_ratios[sampled] == pytest.approx(ratios, rel=1e-4)
    ratios = [s.importance_ratios[s.importance_ratios > 0] for s in both]
    metrics = result.metrics
    assert metrics["importance_ratio_max"] == pytest.approx(ratios[0].max(), rel=1e-5)
    assert metrics["replayed_importance_ratio_max"] == pytest.approx(ratios[1].max(), rel=1e-5)
    assert metrics["replayed_logprob_diff_mean"] > metrics["logprob_diff_mean"]
    assert "replayed_clip_fraction" not in trainer.step([fresh]).metrics
