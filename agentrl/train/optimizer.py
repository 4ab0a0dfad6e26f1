"""AdamW with gradient clipping, over the named parameters of a model.

Computing gradients and applying them are two calls, so that replicas can average between them.

Invariants
- An update with a gradient that is not finite does not happen: weights, moments and the count of
  updates stay as they are, and the error names the parameters.
- `state()` then `load_state()` continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_MOMENTS = ("exp_avg", "exp_avg_sq")


class NonFiniteError(ArithmeticError):
    """A number that is NaN or infinite where training needs a finite one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """The moments of every parameter, by its name, and how many updates made them."""

    updates: int
    tensors: Mapping[str, Tensor]
    """`<parameter>.exp_avg` and `<parameter>.exp_avg_sq`; empty before the first update."""


class Optimizer:
    """Weight decay holds for matrices alone, not for gains and biases."""

    def __init__(
        self,
        model: nn.Module,
        *,
        betas: tuple[float, float],
        weight_decay: float,
        grad_clip: float,
    ) -> None:
        self._parameters = dict(model.named_parameters())
        self._grad_clip = grad_clip
        matrices = [p for p in self._parameters.values() if p.ndim >= 2]
        vectors = [p for p in self._parameters.values() if p.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            betas=betas,
            fused=True,
        )
        self.updates = 0
        """Applied so far."""

    def apply(self, learning_rate: float) -> float:
        """One update from the gradients the parameters hold, which are cleared.

        Returns their norm before clipping.
        """
        parameters = self._parameters.values()
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not torch.isfinite(norm):
            raise NonFiniteError(f"{_name_non_finite(self._parameters)}; no update was made")
        nn.utils.clip_grads_with_norm_(parameters, self._grad_clip, norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad()
        self.updates += 1
        return float(norm)

    def state(self) -> OptimizerState:
        """A copy on the CPU, which later updates do not touch."""
        return OptimizerState(
            updates=self.updates,
            tensors={
                f"{name}.{moment}": self._adamw.state[parameter][moment].to("cpu", copy=True)
                for name, parameter in self._parameters.items()
                for moment in _MOMENTS
                if self.updates > 0
            },
        )

    def load_state(self, state: OptimizerState) -> None:
        expected = {
            f"{name}.{moment}": parameter.shape
            for name, parameter in self._parameters.items()
            for moment in _MOMENTS
            if state.updates > 0
        }
        found = {name: tensor.shape for name, tensor in state.tensors.items()}
        if found != expected:
            wrong = sorted(name for name, _ in found.items() ^ expected.items())
            raise ValueError(
                f"optimizer state: {len(wrong)} tensors are missing, unknown or of another shape "
                f"than this model's, such as {wrong[0]}; resume with the model section of the run"
            )
        self.updates = state.updates
        for name, parameter in self._parameters.items():
            if self.updates > 0:
                moments = {moment: state.tensors[f"{name}.{moment}"] for moment in _MOMENTS}
                self._adamw.state[parameter] = {
                    "step": torch.tensor(float(self.updates), device=parameter.device),
                    **{key: value.to(parameter.device).clone() for key, value in moments.items()},
                }


def _name_non_finite(parameters: Mapping[str, nn.Parameter]) -> str:
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    ]
    return (
        f"the gradient is not finite in {len(names)} of {len(parameters)} parameters: {names[:3]}"
    )
