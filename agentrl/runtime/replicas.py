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
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it unmarked

TIMEOUT = timedelta(seconds=120)
Meeting = TCPStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A replica's place: `rank` of `size`, meeting at `host:port`, where rank 0 is the host."""

    rank: int
    size: int
    host: str = ""
    port: int = 0


def open_meeting(host: str, size: int) -> TCPStore:
    """Rank 0 opens the place where replicas meet; its `port` was free and stays taken."""
    return TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


class Replicas:
    """The process group of one replica. A context manager: leaving it leaves the group.

    `meeting` is what `open_meeting` gave, for rank 0; the others connect to it.
    """

    def __init__(self, seat: Seat, meeting: TCPStore | None = None) -> None:
        self.seat = seat
        self._meeting = meeting

    def __enter__(self) -> Replicas:
        seat = self.seat
        if seat.size > 1:
            meeting = self._meeting or TCPStore(
                seat.host, seat.port, seat.size, is_master=False, timeout=TIMEOUT
            )
            dist.init_process_group(
                "gloo", store=meeting, rank=seat.rank, world_size=seat.size, timeout=TIMEOUT
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
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _scalar(value: float) -> Tensor:
    return torch.tensor([float(value)])
