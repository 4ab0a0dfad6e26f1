"""Supervised steps on demonstrations, so that reinforcement has something to reinforce.

Demonstrations are packed back to back into rows of one length, and attention is *not* blocked
between them: a row is one long context in which the model must find what belongs to its own
document and ignore the rest. A small model trained on one demonstration a row learns to copy
whatever it sees and fails on contexts longer than the demonstrations; packed rows teach it to look.

Invariants
- Loss is on the policy's own tokens alone, and every step is the mean over those of its batch.
- Gradients and their application are two calls, so that replicas can average in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.config.sections import WarmupSection
from agentrl.train.optimizer import NonFiniteError, Optimizer
from agentrl.train.schedule import warmup_schedule

# Shapes: R rows, T columns of a row, N tokens with loss.

Average = Callable[[Sequence[nn.Parameter], int], None]
"""Replaces the gradients of parameters by their mean over replicas, weighted by a token count."""


class Demonstration(Protocol):
    """One played-out attempt, or a row of them."""

    @property
    def ids(self) -> NDArray[np.int32]: ...

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """True on the tokens that a policy would have sampled; as long as `ids`."""
        ...


class PackedRow(NamedTuple):
    """Demonstrations back to back."""

    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """The batch of one step."""

    ids_RT: Tensor
    has_loss_RT: Tensor

    @property
    def num_loss_tokens(self) -> int:
        return int(self.has_loss_RT.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupStep:
    """Progress. `step` counts from 1."""

    step: int
    loss: float
    """Mean over the policy's tokens, in nats."""
    learning_rate: float
    grad_norm: float


class Warmup:
    """Owns the optimizer of the warm-up, which ends with it."""

    def __init__(self, model: PreTrainedModel, section: WarmupSection) -> None:
        self._model = model.eval()
        self._section = section
        self._schedule = warmup_schedule(section)
        self._optimizer = Optimizer(
            model, betas=(0.9, 0.95), weight_decay=0.0, grad_clip=section.grad_clip
        )

    def run(
        self,
        demonstrations: Iterator[Demonstration],
        *,
        num_replicas: int = 1,
        average: Average | None = None,
    ) -> Iterator[WarmupStep]:
        """All steps, one an item; it can be left between any two.

        Each of `num_replicas` processes runs this on demonstrations of its own and computes its
        share of the batch; they agree by `average`.
        """
        parameters = list(self._model.parameters())
        rows = pack_rows(demonstrations, self._section.row_tokens)
        num_rows = max(1, self._section.batch_tokens // self._section.row_tokens // num_replicas)
        for step in range(1, self._section.steps + 1):
            batch = stack(list(islice(rows, num_rows)))
            loss = self.gradients(batch)
            if average is not None:
                average(parameters, batch.num_loss_tokens)
            yield self.apply(step, loss)

    def gradients(self, batch: PackedBatch) -> float:
        """Leaves the gradient of the batch's mean loss in the parameters; returns that loss."""
        loss = _loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(loss.detach())

    def apply(self, step: int, loss: float) -> WarmupStep:
        """Makes the update of this step from the gradients the parameters hold."""
        rate = self._schedule.rate(step)
        try:
            grad_norm = self._optimizer.apply(rate)
        except NonFiniteError as error:
            raise NonFiniteError(f"warm-up step {step}, loss {loss}: {error}") from error
        return WarmupStep(step=step, loss=loss, learning_rate=rate, grad_norm=grad_norm)


def pack_rows(demonstrations: Iterator[Demonstration], row_tokens: int) -> Iterator[PackedRow]:
    """Rows of exactly `row_tokens`, full of demonstrations in order.

    A demonstration that crosses the end of its row is cut there, and its rest is left out: the
    next row would show an answer without what it answers.
    """
    parts: list[Demonstration] = []
    room = row_tokens
    for demonstration in demonstrations:
        parts.append(demonstration)
        room -= len(demonstration.ids)
        if room <= 0:
            yield PackedRow(
                ids=np.concatenate([part.ids for part in parts])[:row_tokens],
                loss_mask=np.concatenate([part.loss_mask for part in parts])[:row_tokens],
            )
            parts, room = [], row_tokens


def stack(rows: Sequence[PackedRow]) -> PackedBatch:
    if not rows:
        raise ValueError(
            "warmup: the environment gives no more demonstrations; Env.demo() must yield turns for "
            "the tasks of the train split, and the split must not end"
        )
    if not any(row.loss_mask[1:].any() for row in rows):
        raise ValueError(
            f"warmup.row_tokens: got {len(rows[0].ids)}, wanted more: a whole batch of rows ended "
            "before the first token that a policy would have sampled"
        )
    return PackedBatch(
        ids_RT=torch.from_numpy(np.stack([row.ids for row in rows])).long(),
        has_loss_RT=torch.from_numpy(np.stack([row.loss_mask for row in rows])),
    )


def _loss(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    ids_RT = batch.ids_RT.to(model.device)
    is_target_RT = batch.has_loss_RT[:, 1:].to(model.device)
    hidden_RTH = model.base_model(input_ids=ids_RT[:, :-1], use_cache=False).last_hidden_state
    logits_NV = model.get_output_embeddings()(hidden_RTH[is_target_RT]).float()
    return nn.functional.cross_entropy(logits_NV, ids_RT[:, 1:][is_target_RT])
