import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import nn

from agentrl.runtime.membership import Membership, ReplicaLost
from agentrl.runtime.replicas import Replicas, open_meeting

DEADLINE_S = 60


def replica(rank: int, size: int, work: Callable[..., Any], ports: Any, results: Any) -> None:
    torch.set_num_threads(1)
    meeting = open_meeting("127.0.0.1", size) if rank == 0 else None
    if meeting is not None:
        for _ in range(size - 1):
            ports.put(meeting.port)
    port = meeting.port if meeting is not None else ports.get(timeout=DEADLINE_S)
    membership = Membership(rank=rank, size=size, host="127.0.0.1", port=port)
    results.put((rank, work(Replicas(membership, meeting))))


def together(size: int, work: Callable[..., Any], *, answers: int | None = None) -> dict[int, Any]:
    """What `work(replicas)` returns in each of `size` processes, by rank."""
    context = get_context("spawn")
    ports, results = context.Queue(), context.Queue()
    processes = [
        context.Process(target=replica, args=(rank, size, work, ports, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    got = dict(results.get(timeout=DEADLINE_S) for _ in range(answers or size))
    for process in processes:
        process.join(timeout=DEADLINE_S)
    return got


def gradients_of(rank: int) -> list[nn.Parameter]:
    """The first parameter has one, the second never got any."""
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    parameters[0].grad = torch.full((3,), float(rank + 1))
    return parameters


def averaged(replicas: Replicas) -> list[Any]:
    parameters = gradients_of(replicas.membership.rank)
    with replicas:
        replicas.average(parameters, num_tokens=30 if replicas.membership.rank == 0 else 10)
    return [p.grad.tolist() for p in parameters if p.grad is not None]


def added(replicas: Replicas) -> list[Any]:
    parameters = gradients_of(replicas.membership.rank)
    with replicas:
        replicas.add_up(parameters)
    return [p.grad.tolist() for p in parameters if p.grad is not None]


def killed_after_the_first(replicas: Replicas) -> str:
    """The last rank dies between two steps; the others must hear of it in the second."""
    parameters = gradients_of(replicas.membership.rank)
    with replicas:
        replicas.add_up(parameters)
        if replicas.membership.rank == replicas.membership.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            replicas.add_up(parameters)
        except ReplicaLost:
            return "told"
    return "not told"


@pytest.mark.slow
def test_gradients_are_averaged_by_tokens_and_absent_ones_count_as_zero() -> None:
    wanted = [[(1 * 30 + 2 * 10) / 40] * 3, [[0.0, 0.0], [0.0, 0.0]]]
    assert together(2, averaged) == {0: wanted, 1: wanted}


@pytest.mark.slow
def test_shares_add_up_and_absent_ones_count_as_zero() -> None:
    wanted = [[3.0] * 3, [[0.0, 0.0], [0.0, 0.0]]]
    assert together(2, added) == {0: wanted, 1: wanted}


@pytest.mark.slow
def test_a_killed_replica_is_an_error_for_all_others() -> None:
    assert together(3, killed_after_the_first, answers=2) == {0: "told", 1: "told"}


def test_one_replica_needs_no_group() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    with Replicas(Membership(rank=0, size=1)) as replicas:
        replicas.average([parameter], 5)
        replicas.add_up([parameter])
    assert parameter.grad.item() == 1.0


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_meeting_to_which_somebody_cannot_come_any_more_is_called_off(rank: int) -> None:
    """Long before the time-out that there is without it."""
    called_off = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    meeting = open_meeting("127.0.0.1", 2) if rank == 0 else None
    membership = Membership(rank=rank, size=2, host="127.0.0.1", port=port)
    threading.Timer(0.5, called_off.set).start()
    with pytest.raises(ReplicaLost, match="called off"), Replicas(membership, meeting, called_off):
        pass
