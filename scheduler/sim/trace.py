"""The agents of a recorded run, to be simulated on other fleets and under other policies.

Everything the simulator needs is in the scheduler's own log: tokens of each turn, what the tools
gave back and how long they took, who belonged to which group. Attempts that were lost on the way, and
evaluation, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.events import Finished, Submitted, ToolReturned, ToolStatus, TurnFinished, TurnReady
from scheduler.replay import LogEntry
from scheduler.sim.workload import AttemptPlan, ToolPlan, TurnPlan

_REPLY = ToolPlan(tool="reply", status=ToolStatus.OK, size_tokens=1, seconds=0.0, call_hash="")
"""The environment spoke instead of a tool; the log does not say at what length."""


@dataclass(slots=True)
class _Attempt:
    submitted: Submitted
    start_seconds: float | None = None
    turns: list[tuple[int, list[ToolReturned]]] = field(default_factory=list)
    """Tokens of each turn, and the results after it."""

    def plan(self, sibling: int) -> AttemptPlan:
        last = len(self.turns) - 1
        return AttemptPlan(
            group_id=self.submitted.group_id,
            sibling=sibling,
            task_family=self.submitted.task_family,
            prompt_tokens=self.submitted.prompt_tokens,
            start_seconds=self.start_seconds or 0.0,
            turns=tuple(
                TurnPlan(tokens=max(1, tokens), tool=None if i == last else _together(results))
                for i, (tokens, results) in enumerate(self.turns)
            ),
        )


def _together(results: list[ToolReturned]) -> ToolPlan:
    """Calls of one turn ran side by side: the slowest decides, and all their text comes back."""
    if not results:
        return _REPLY
    slowest = max(results, key=lambda result: result.seconds)
    return ToolPlan(
        tool=slowest.tool,
        status=slowest.status,
        size_tokens=sum(result.size_tokens for result in results),
        seconds=slowest.seconds,
        call_hash=slowest.call_hash,
    )


def recorded_groups(log: Iterable[LogEntry]) -> list[tuple[AttemptPlan, ...]]:
    """The groups of a run's log, each with the attempts that came to their end."""
    running: dict[str, _Attempt] = {}
    finished: dict[str, list[_Attempt]] = {}
    for entry in log:
        event = entry.event
        match event:
            case Submitted() if not event.is_eval:
                running[event.trajectory_id] = _Attempt(event)
            case TurnReady(trajectory_id=name) if name in running:
                attempt = running[name]
                if attempt.start_seconds is None:
                    attempt.start_seconds = event.t - attempt.submitted.t
                    prompt = replace(attempt.submitted, prompt_tokens=event.context_tokens)
                    attempt.submitted = prompt
            case TurnFinished(trajectory_id=name) if name in running:
                running[name].turns.append((event.tokens, []))
            case ToolReturned(trajectory_id=name) if name in running:
                running[name].turns[-1][1].append(event)
            case Finished(trajectory_id=name) if name in running and running[name].turns:
                attempt = running.pop(name)
                finished.setdefault(attempt.submitted.group_id, []).append(attempt)
            case _:
                pass
    return [
        tuple(attempt.plan(sibling) for sibling, attempt in enumerate(attempts))
        for attempts in finished.values()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorkload:
    """Recorded groups in an order drawn from the seed, again and again."""

    groups: tuple[tuple[AttemptPlan, ...], ...]
    seed: int

    def group(self, index: int) -> tuple[AttemptPlan, ...]:
        lap, place = divmod(index, len(self.groups))
        order = np.random.default_rng((self.seed, lap)).permutation(len(self.groups))
        group = self.groups[int(order[place])]
        return tuple(replace(plan, group_id=f"g{index}") for plan in group)
