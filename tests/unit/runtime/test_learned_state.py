"""What the scheduler learned travels by the checkpoint's header into the next launch's log."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.progress import RunProgress
from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.events import Restored, Role, RunStarted, WeightsLoaded, WorkerReady
from scheduler.replay import read_log, replay
from scheduler.routing.least_load import LeastLoad


def fresh() -> Scheduler:
    admission = CapacityAdmission(
        groups_per_step=1, num_steps=1, max_staleness=0, max_running_groups=1
    )
    return Scheduler(routing=LeastLoad(), admission=admission)


async def test_a_checkpoint_takes_what_was_learned_into_the_next_launch(tmp_path: Path) -> None:
    first = Coordinator(
        CoordinatorState(scheduler=fresh(), log_bytes=0), tmp_path / "first.jsonl", lambda: 0.0, 1.0
    )
    await first.open()
    ready = WorkerReady(worker_id="w", role=Role.ROLLOUT, max_running=1)
    loads = [WeightsLoaded(worker_id="w", version=i, seconds=i / 3) for i in (1, 2)]
    await first.tell("driver", 1, [ready, *loads], 0)
    header = json.dumps(RunProgress(step=2, learned=await first.learned()).to_json())
    await first.close()

    progress = RunProgress.from_json(json.loads(header))
    scheduler = fresh()
    path = tmp_path / "second.jsonl"
    second = Coordinator(CoordinatorState(scheduler=scheduler, log_bytes=0), path, lambda: 0.0, 1.0)
    await second.open()
    await second.tell("driver", 1, [Restored(learned=progress.learned), RunStarted(version=2)], 0)
    assert await second.learned() == await first.learned()
    assert scheduler.calibration.reports()["weights to rollout"].num_observed == 2
    await second.close()
    with path.open("rb") as log:
        again = fresh()
        assert replay(again, read_log(log)).difference is None
    assert again.save() == scheduler.save()
