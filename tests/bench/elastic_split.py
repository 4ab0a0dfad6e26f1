"""`agentrl train` with each worker on a core of its choice, so that roles can share one.

    SPLIT=1,0,1 python elastic_split.py train run.yaml

SPLIT names the core of each worker: those that train first, then those that sample, then those
that judge; `-` leaves it to the system. Only static layouts need it: where workers change roles, a
worker is a core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import agentrl.runtime.staff
from agentrl.cli.main import app
from agentrl.runtime.cores import Cores


def cores_for(sizes: Sequence[int], *, pin: bool) -> list[Cores]:
    own = sorted(os.sched_getaffinity(0))
    places = os.environ["SPLIT"].split(",")
    assert len(places) == len(sizes), f"SPLIT has {len(places)} cores for {len(sizes)} workers"
    return [() if place == "-" else (own[int(place)],) for place in places]


if __name__ == "__main__":
    agentrl.runtime.staff.cores_for = cores_for
    # a core that two share is leased to neither: no worker of a static layout takes another's
    agentrl.runtime.staff.WorkerSeat.accelerators = property(lambda seat: (seat.worker_id,))  # type: ignore[assignment, method-assign]
    app()
