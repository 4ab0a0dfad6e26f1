"""A shift policy that goes everywhere: colocated phases, and before each of them a detour.

Before all turn to the next phase, one worker goes through the role that is neither its own nor the
phase's. So workers move in all six directions in every step, and the work gets done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.colocated import ColocatedPhases
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.wiring import WiredShifts
from scheduler.views import ShiftView, TrajectoryView, WorkerView


class Detours:
    num_weighed = 0

    def __init__(self, world: ShiftWorld) -> None:
        self._world = world
        self._phases = ColocatedPhases(world)
        self._prepared: Role | None = None
        """The phase that the last detour was made before."""

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        plan = self._phases.plan(view)
        if plan is None:
            return None
        phase = next(iter(plan.moves.values())).role
        if phase is self._prepared:
            return plan
        self._prepared = phase
        member = min(
            (m for m in view.members if m.worker.worker_id in plan.moves),
            key=lambda m: m.worker.worker_id,
        )
        way = next(role for role in Role if role not in (member.duty.role, phase))
        return self._world.plan([member], way)

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False


def wire_shifts(
    name: str, options: Mapping[str, Any], world: ShiftWorld, layout: Mapping[Role, int]
) -> WiredShifts:
    """In place of `scheduler.shifting.wiring.wire_shifts`."""
    return WiredShifts(policy=Detours(world))
