from multiprocessing import get_context

import pytest
import torch
from torch import nn

from agentrl.runtime.replicas import Replicas, Seat, open_meeting


def averaged(rank: int, num_tokens: int, ports, results) -> None:
    torch.set_num_threads(1)
    meeting = open_meeting("127.0.0.1", 2) if rank == 0 else None
    if meeting is not None:
        ports.put(meeting.port)
    port = meeting.port if meeting is not None else ports.get(timeout=60)
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    parameters[0].grad = torch.full((3,), float(rank + 1))
    with Replicas(Seat(rank=rank, size=2, host="127.0.0.1", port=port), meeting) as replicas:
        replicas.average(parameters, num_tokens)
    results.put((rank, [p.grad.tolist() for p in parameters]))


@pytest.mark.slow
def test_gradients_are_averaged_by_tokens_and_absent_ones_count_as_zero() -> None:
    context = get_context("spawn")
    ports, results = context.Queue(), context.Queue()
    processes = [
        context.Process(target=averaged, args=(rank, tokens, ports, results))
        for rank, tokens in [(0, 30), (1, 10)]
    ]
    for process in processes:
        process.start()
    got = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    wanted = [[(1 * 30 + 2 * 10) / 40] * 3, [[0.0, 0.0], [0.0, 0.0]]]
    assert got == {0: wanted, 1: wanted}


def test_one_replica_needs_no_group() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    with Replicas(Seat(rank=0, size=1)) as replicas:
        replicas.average([parameter], 5)
    assert parameter.grad.item() == 1.0
