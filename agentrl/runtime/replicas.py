"""Gradients of processes that train the same weights on different data, brought together.

In the supervised warm-up each replica has data of its own, and shares are weighted by the tokens
behind them. In an optimizer step shares are cut from one batch, and add up. Gloo over TCP; every
wait ends at a deadline, and a lost replica is `ReplicaLost` for the others, never a hang. Who is lost
before the others have met them is noticed by nobody there, so a meeting can be called off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it unmarked

from agentrl.runtime.membership import Membership, ReplicaLost

TIMEOUT = timedelta(seconds=120)
LOOK_S = 0.05
"""Between two looks for those that are not there yet."""
CONNECT_TIMEOUT = timedelta(seconds=1)
"""Of one try; a host that is there answers at once."""
Meeting = TCPStore


def open_meeting(host: str, size: int) -> TCPStore:
    """Rank 0 opens the place where replicas meet; its `port` was free and stays taken."""
    return TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


class Replicas:
    """The process group of one replica. A context manager: leaving it leaves the group.

    `meeting` is what `open_meeting` gave, for rank 0; the others connect to it. Nobody waits for
    the others any more once `called_off` is set.
    """

    def __init__(
        self,
        membership: Membership,
        meeting: TCPStore | None = None,
        called_off: Event | None = None,
    ) -> None:
        self.membership = membership
        self._meeting = meeting
        self._called_off = called_off or Event()

    def __enter__(self) -> Replicas:
        membership = self.membership
        if membership.size > 1:
            with _told_of_losses():
                meeting = self._meeting or self._connect()
                meeting.set(f"here/{membership.rank}", "")
                names = [f"here/{rank}" for rank in range(membership.size)]
                self._wait(lambda: meeting.check(names))
                dist.init_process_group(
                    "gloo",
                    store=meeting,
                    rank=membership.rank,
                    world_size=membership.size,
                    timeout=TIMEOUT,
                )
        return self

    def _connect(self) -> TCPStore:
        membership = self.membership
        found: list[TCPStore] = []

        def is_connected() -> bool:
            with suppress(RuntimeError):
                found.append(
                    TCPStore(
                        membership.host,
                        membership.port,
                        membership.size,
                        is_master=False,
                        timeout=CONNECT_TIMEOUT,
                    )
                )
            return bool(found)

        self._wait(is_connected)
        found[0].set_timeout(TIMEOUT)
        return found[0]

    def _wait(self, has_come: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not has_come():
            if self._called_off.is_set():
                raise RuntimeError("the meeting was called off")
            if time.monotonic() > deadline:
                raise RuntimeError(f"somebody did not come within {TIMEOUT.total_seconds():.0f} s")
            time.sleep(LOOK_S)

    def __exit__(self, *exc: object) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def average(self, parameters: Sequence[nn.Parameter], num_tokens: int) -> None:
        """Replace each gradient by the mean over replicas, weighted by `num_tokens`."""
        if self.membership.size == 1:
            return
        weighted = [_gradient(p).flatten() * num_tokens for p in parameters]
        flat = self._total([*weighted, torch.tensor([float(num_tokens)])])
        _spread(flat[:-1] / flat[-1], parameters)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by the sum over replicas; a missing one counts as zeros."""
        if self.membership.size == 1:
            return
        _spread(self._total([_gradient(p).flatten() for p in parameters]), parameters)

    def _total(self, parts: list[Tensor]) -> Tensor:
        flat = torch.cat(parts)
        with _told_of_losses():
            dist.all_reduce(flat)
        return flat


@contextmanager
def _told_of_losses() -> Iterator[None]:
    """torch.distributed raises RuntimeError for whatever a peer's death looks like."""
    try:
        yield
    except RuntimeError as error:
        raise ReplicaLost(f"the replicas did not come together: {error}") from error


def _spread(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
        _gradient(parameter).copy_(part.view_as(parameter))


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
