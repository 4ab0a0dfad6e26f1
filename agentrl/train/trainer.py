"""Takes a batch of samples, makes one optimizer step, and says what it saw.

Owns the weights being trained, their optimizer and schedule, and, when a KL penalty asks for them,
the frozen weights from before training. It knows nothing of groups, outcomes or processes: a batch
is whatever samples the loop hands over.

Invariants
- The gradient is that of the mean over the whole batch, however it is cut into microbatches and
  whichever replica computes which of them: the gradients of all replicas add up to it.
- A number that is not finite ends the step before the weights change, and the error names the
  step, the column and the trajectory.
- A batch without samples is a step that changes no weight: it counts, and the schedule moves on.
- The model stays in eval mode: dropout would train another policy than the one that sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.sections import TrainSection
from agentrl.train.batches import MicroBatch, pack, share_of
from agentrl.train.logprobs import check_model, check_sampling, sampled_logprobs
from agentrl.train.losses import k3_divergence, ppo_clip_loss
from agentrl.train.optimizer import NonFiniteError, Optimizer, OptimizerState
from agentrl.train.report import (
    AppliedStep,
    StepResult,
    TokenReport,
    TrainedSample,
    TrainedShare,
    result_of,
    split_by_sample,
)
from agentrl.train.schedule import training_schedule
from agentrl.types import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainerState:
    """Everything a trainer needs to go on, apart from the model's weights."""

    steps_done: int
    optimizer: OptimizerState
    reference: Mapping[str, Tensor]
    """Weights from before training; empty without a KL penalty."""


class _Learned(NamedTuple):
    """From one microbatch."""

    loss: float
    report: TokenReport


class Trainer:
    """Made after the warm-up: the weights it starts with are those a KL penalty refers to."""

    def __init__(
        self,
        model: PreTrainedModel,
        section: TrainSection,
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        check_sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        if model.dtype != torch.float32:
            raise ValueError(
                f"model.dtype: got {model.dtype}, wanted float32 to train: small updates are lost "
                "when they are added to rounded weights"
            )
        self._model = model.eval()
        check_model(model)
        self._section = section
        self._temperature = temperature
        self._schedule = training_schedule(section.optimizer, steps=section.steps)
        self._optimizer = Optimizer(
            model,
            betas=section.optimizer.betas,
            weight_decay=section.optimizer.weight_decay,
            grad_clip=section.optimizer.grad_clip,
        )
        self._reference = _frozen_copy(model) if section.loss.kl_coef > 0 else None
        self.steps_done = 0
        """Steps without samples included."""

    def step(self, samples: Sequence[TrainingSample]) -> StepResult:
        """At most one update, from one batch, by this process alone."""
        share = self.accumulate(samples)
        return result_of([share], self.apply(has_samples=bool(samples)))

    def accumulate(
        self, samples: Sequence[TrainingSample], *, rank: int = 0, size: int = 1
    ) -> TrainedShare:
        """Compute share `rank` of `size` of the batch's gradient, and leave it in the parameters.

        Every replica is given the whole batch, and they agree on the shares without a word.
        """
        batches = pack(
            samples,
            budget=self._section.microbatch_tokens,
            aggregate=self._section.loss.aggregate,
        )
        self.discard()
        trained: dict[int, TrainedSample] = {}
        learned = []
        mine = share_of(batches, rank=rank, size=size)
        for batch in mine:
            try:
                learned.append(self._learn(batch, samples))
            except NonFiniteError as error:
                self.discard()
                raise NonFiniteError(f"step {self.steps_done + 1}: {error}") from error
            trained |= split_by_sample(learned[-1].report, samples, batch.members)
        return TrainedShare(
            samples=trained,
            reports=tuple(part.report for part in learned),
            loss=sum(part.loss for part in learned),
            num_tokens=sum(batch.num_tokens for batch in mine),
        )

    def discard(self) -> None:
        """Forget what was accumulated; the step can be done over."""
        self._model.zero_grad()

    def apply(self, *, has_samples: bool) -> AppliedStep:
        """End the step with the update that the parameters' gradients ask for."""
        step = self.steps_done + 1
        rate = self._schedule.rate(step)
        try:
            grad_norm = self._optimizer.apply(rate) if has_samples else None
        except NonFiniteError as error:
            self.discard()
            raise NonFiniteError(f"step {step}: {error}") from error
        self.steps_done = step
        return AppliedStep(step=step, learning_rate=rate, grad_norm=grad_norm)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """A copy of the parameters by name; tied ones once, under their first name."""
        return {
            name: parameter.detach().cpu().numpy().copy()
            for name, parameter in self._model.named_parameters()
        }

    def state(self) -> TrainerState:
        """A copy on the CPU, which any process can read."""
        reference = dict(self._reference.named_parameters()) if self._reference else {}
        return TrainerState(
            steps_done=self.steps_done,
            optimizer=self._optimizer.state(),
            reference={
                name: tensor.detach().to("cpu", copy=True) for name, tensor in reference.items()
            },
        )

    def load_state(self, state: TrainerState) -> None:
        """Go on where `state` was taken; the weights of that moment are already in the model."""
        self._optimizer.load_state(state.optimizer)
        self.steps_done = state.steps_done
        if self._reference is None:
            return
        if not state.reference:
            raise ValueError(
                "train.loss.kl_coef: the checkpoint holds no reference weights, because it was "
                "written without a KL penalty; set kl_coef to 0 or start a new run"
            )
        self._reference.load_state_dict(dict(state.reference), strict=False)

    def _learn(self, batch: MicroBatch, samples: Sequence[TrainingSample]) -> _Learned:
        """Adds the gradient of one microbatch to the parameters."""
        tokens = batch.tokens.to(self._model.device)
        logprobs_N, entropy_N = sampled_logprobs(self._model, batch, temperature=self._temperature)
        ref_logprobs_N = self._reference_logprobs(batch)
        columns = {
            "rollout_logprobs": tokens.logprobs_N,
            "advantages": tokens.advantages_N,
            "trainer_logprobs": logprobs_N.detach(),
        }
        for name, column_N in columns.items():
            _check_finite(name, column_N, batch, samples)
        policy = ppo_clip_loss(
            self._section.loss,
            logprobs_N=logprobs_N,
            tokens=tokens,
            ref_logprobs_N=ref_logprobs_N,
            ratio_max=self._section.replay.ratio_max,
        )
        policy.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            ref_kl_N = (
                torch.zeros_like(logprobs_N)
                if ref_logprobs_N is None
                else k3_divergence(logprobs_N, ref_logprobs_N)
            )
        report = TokenReport(
            trainer_logprobs=logprobs_N.detach().cpu().numpy(),
            rollout_logprobs=batch.tokens.logprobs_N.numpy(),
            importance_ratios=policy.importance_ratios_N.cpu().numpy(),
            is_clipped=policy.is_clipped_N.cpu().numpy(),
            entropy=entropy_N.cpu().numpy(),
            ref_kl=ref_kl_N.cpu().numpy(),
            is_replayed=batch.tokens.is_replayed_N.numpy(),
        )
        return _Learned(float(policy.loss.detach()), report)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        return sampled_logprobs(self._reference, batch, temperature=self._temperature).logprobs_N


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).requires_grad_(False)


def _check_finite(
    name: str, column_N: Tensor, batch: MicroBatch, samples: Sequence[TrainingSample]
) -> None:
    is_bad_N = ~torch.isfinite(column_N)
    if not is_bad_N.any():
        return
    counts = [int(samples[index].loss_mask.sum()) for index in batch.members]
    first = int(is_bad_N.nonzero()[0])
    sample = samples[batch.members[int(np.searchsorted(np.cumsum(counts), first, side="right"))]]
    raise NonFiniteError(
        f"{name} is {float(column_N[first])} at a sampled token of trajectory "
        f"{sample.trajectory_id}, and not finite at {int(is_bad_N.sum())} of {len(is_bad_N)} tokens "
        "of its microbatch"
    )
