"""Averages gradients over processes that train the same weights on different data.

Used by the supervised warm-up, where every worker is a replica. Shares are weighted by the tokens
behind them, so the result is the gradient of the mean over the union. Gloo over TCP; every wait
ends at a deadline, so a lost replica is an error and not a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A replica's place: `rank` of `size`, meeting at `host:port`."""

    rank: int
    size: int
    host: str
    port: int


class Replicas:
    """The process group of one replica. A context manager: leaving it leaves the group."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    def __enter__(self) -> Replicas:
        seat = self.seat
        if seat.size > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://{seat.host}:{seat.port}",
                rank=seat.rank,
                world_size=seat.size,
                timeout=TIMEOUT,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def average(self, parameters: Sequence[nn.Parameter], num_tokens: int) -> None:
        """Replace each gradient by the mean over replicas, weighted by `num_tokens`."""
        if self.seat.size == 1:
            return
        gradients = [_gradient(parameter) for parameter in parameters]
        flat = torch.cat([g.flatten() * num_tokens for g in gradients] + [_scalar(num_tokens)])
        dist.all_reduce(flat)
        flat = flat[:-1] / flat[-1]
        for gradient, mean in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _scalar(value: float) -> Tensor:
    return torch.tensor([float(value)])
