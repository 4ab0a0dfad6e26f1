"""Attempts in a simulated cluster: their turns, their tools, their ends, and their judgements.

An attempt is played the way a runner plays it: it says what happens to it, waits for its places and asks
again with the tokens it has when a worker is lost or leaves. A judgement is an attempt of one turn
for another role, and its attempt is over for its group only when the judgement is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from scheduler.decisions import Cut, Place, Prewarm, Requeue, RequeueReason
from scheduler.events import (
    Event,
    Failed,
    FailureKind,
    Finished,
    GroupAccepted,
    GroupRejected,
    PlaceRejected,
    Role,
    Submitted,
    ToolReturned,
    ToolStarted,
    TurnFinished,
    TurnReady,
)
from scheduler.sim.agenda import Agenda
from scheduler.sim.faults import Faults
from scheduler.sim.requests import Key, Request
from scheduler.sim.specs import ClusterResult, Ended
from scheduler.sim.workload import AttemptPlan, Workload

JOB = "main"


class Send(Protocol):
    def __call__(self, kind: type[Event], /, **fields: Any) -> None: ...


@dataclass(slots=True)
class Attempt:
    plan: AttemptPlan
    role: Role
    started_t: float
    generation: int = 0
    turn: int = 0
    done_tokens: int = 0
    """Of the turn in progress, kept when a worker is lost."""
    context_tokens: int = 0
    worker_id: str | None = None
    """Where the turn in progress runs."""
    home_id: str | None = None
    """Where its cache may lie."""
    warm_id: str | None = None
    """Where it was computed ahead."""
    is_requeued: bool = False
    """It is about to ask again: places of its present generation are void."""
    is_resting: bool = False
    """Its turn has ended and the next one is not ready."""
    is_over: bool = False

    @property
    def trajectory_id(self) -> str:
        name = self.plan.trajectory_id
        return f"{name}/judge" if self.role is Role.GENRM else name

    @property
    def key(self) -> Key:
        return JOB, self.trajectory_id

    @property
    def left_tokens(self) -> int:
        return self.plan.turns[self.turn].tokens - self.done_tokens

    def keep(self, done_tokens: int) -> None:
        """The turn in progress stopped after so many more tokens, and goes on elsewhere."""
        done = min(done_tokens, self.left_tokens - 1)
        self.done_tokens += done
        self.context_tokens += done
        self.worker_id = None


class Hosts(Protocol):
    """The workers, as attempts use them."""

    def serve(self, place: Place, attempt: Attempt, request: Request) -> bool:
        """Begin a turn; False when the worker is not what the place was based on."""
        ...

    def prewarm(self, prewarm: Prewarm, request: Request) -> bool:
        """Compute a context; False when the worker is not what that was based on."""
        ...

    def abort(self, attempt: Attempt) -> None:
        """Stop its turn, keeping its tokens."""
        ...

    def forget(self, worker_id: str, key: Key) -> None:
        """Drop its cache."""
        ...


class Attempts:
    """See the module docstring."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        send: Send,
        workload: Workload,
        faults: Faults,
        result: ClusterResult,
        judge: Callable[[AttemptPlan], AttemptPlan] | None,
        requeue_s: float,
        group_ready: Callable[[int], None],
    ) -> None:
        """`group_ready` is told the tokens of each group that goes to training."""
        self._agenda = agenda
        self._send = send
        self._workload = workload
        self._faults = faults
        self._result = result
        self._judge = judge
        self._requeue_s = requeue_s
        self._group_ready = group_ready
        self._attempts: dict[str, Attempt] = {}
        self._groups: dict[str, int] = {}
        """Attempts still open, by group."""
        self._group_tokens: dict[str, int] = {}
        self._cut_groups: set[str] = set()
        self._num_groups = 0
        self.hosts: Hosts

    def __len__(self) -> int:
        return len(self._attempts)

    # ------------------------------------------------------------------------------ beginning

    def admit(self, num_groups: int) -> None:
        for _ in range(num_groups):
            self._agenda.now(self._start_group, self._num_groups)
            self._num_groups += 1

    def _start_group(self, index: int) -> None:
        plans = self._workload.group(index)
        self._groups[plans[0].group_id] = len(plans)
        self._group_tokens[plans[0].group_id] = sum(plan.context_tokens for plan in plans)
        for plan in plans:
            self._start(plan, Role.ROLLOUT, 0)

    def _start(self, plan: AttemptPlan, role: Role, generation: int) -> None:
        attempt = Attempt(
            plan, role, self._agenda.t, generation=generation, context_tokens=plan.prompt_tokens
        )
        self._attempts[attempt.trajectory_id] = attempt
        self._send(
            Submitted,
            trajectory_id=attempt.trajectory_id,
            generation=generation,
            group_id=plan.group_id,
            task_family=plan.task_family,
            prompt_tokens=plan.prompt_tokens,
            role=role,
        )
        self._agenda.after(plan.start_seconds, self._ask, attempt)

    # ---------------------------------------------------------------------------------- turns

    def _ask(self, attempt: Attempt) -> None:
        if attempt.is_over:
            return
        attempt.is_resting = False
        self._send(
            TurnReady,
            trajectory_id=attempt.trajectory_id,
            generation=attempt.generation,
            turn=attempt.turn,
            context_tokens=attempt.context_tokens,
        )

    def requeue(self, requeue: Requeue) -> None:
        attempt = self._attempts.get(requeue.trajectory_id)
        if attempt is None or attempt.generation != requeue.generation:
            return
        if attempt.is_resting or attempt.turn != requeue.turn:
            return  # it ended while this was on its way
        attempt.is_requeued = True
        if attempt.worker_id is not None:
            self.hosts.abort(attempt)
        delay = self._requeue_s if requeue.reason is RequeueReason.SHIFT else 0.0
        self._agenda.after(delay, self._ask_again, attempt, attempt.generation, attempt.turn)

    def _ask_again(self, attempt: Attempt, generation: int, turn: int) -> None:
        is_same = (attempt.generation, attempt.turn) == (generation, turn)
        if not attempt.is_over and is_same and attempt.is_requeued:
            attempt.is_requeued = False
            attempt.generation += 1
            self._ask(attempt)

    def place(self, place: Place) -> None:
        attempt = self._attempts.get(place.trajectory_id)
        if attempt is None or attempt.generation != place.generation or attempt.is_requeued:
            return
        request = Request(attempt.key, attempt.context_tokens, attempt.left_tokens)
        if not self.hosts.serve(place, attempt, request):
            self._result.num_rejections += 1
            self._send(
                PlaceRejected,
                trajectory_id=place.trajectory_id,
                generation=place.generation,
                turn=place.turn,
                worker_id=place.worker_id,
                worker_generation=place.worker_generation,
            )
            return
        home = attempt.home_id
        if home is not None and home != place.worker_id:
            self._result.moved_tokens += attempt.context_tokens
            self.hosts.forget(home, attempt.key)
        if attempt.warm_id not in (None, place.worker_id):
            self.hosts.forget(attempt.warm_id, attempt.key)
        attempt.warm_id = None
        attempt.worker_id = attempt.home_id = place.worker_id

    def prewarm(self, prewarm: Prewarm) -> None:
        attempt = self._attempts.get(prewarm.trajectory_id)
        if attempt is None or attempt.generation != prewarm.generation:
            return
        if self.hosts.prewarm(prewarm, Request(attempt.key, attempt.context_tokens, 0)):
            attempt.warm_id = prewarm.worker_id
            self._result.prewarmed_tokens += attempt.context_tokens

    def turn_ended(self, attempt: Attempt) -> None:
        turn = attempt.plan.turns[attempt.turn]
        attempt.worker_id = None
        attempt.is_requeued, attempt.is_resting = False, True
        attempt.context_tokens += attempt.left_tokens
        attempt.done_tokens = 0
        ids = {
            "trajectory_id": attempt.trajectory_id,
            "generation": attempt.generation,
            "turn": attempt.turn,
        }
        self._send(TurnFinished, **ids, tokens=turn.tokens, context_tokens=attempt.context_tokens)
        if turn.tool is None:
            self._finish(attempt)
            return
        self._send(ToolStarted, **ids, call_id=str(attempt.turn), tool=turn.tool.tool)
        self._agenda.after(turn.tool.seconds, self._tool_returned, attempt)

    def _tool_returned(self, attempt: Attempt) -> None:
        if attempt.is_over:
            return
        if self._faults.box_fails():
            self._lose(attempt)
            return
        tool = attempt.plan.turns[attempt.turn].tool
        assert tool is not None
        self._send(
            ToolReturned,
            trajectory_id=attempt.trajectory_id,
            generation=attempt.generation,
            turn=attempt.turn,
            call_id=str(attempt.turn),
            tool=tool.tool,
            status=tool.status,
            size_tokens=tool.size_tokens,
            seconds=tool.seconds,
            call_hash=tool.call_hash,
        )
        attempt.turn += 1
        attempt.context_tokens += tool.size_tokens
        self._ask(attempt)

    # ----------------------------------------------------------------------------------- ends

    def _finish(self, attempt: Attempt) -> None:
        plan = attempt.plan
        self._close(attempt)
        is_rollout = attempt.role is Role.ROLLOUT
        if is_rollout:
            ended = Ended(plan=plan, started_t=attempt.started_t, ended_t=self._agenda.t)
            self._result.ended.append(ended)
        self._send(
            Finished,
            trajectory_id=attempt.trajectory_id,
            generation=attempt.generation,
            tokens=plan.tokens,
        )
        if is_rollout and self._judge is not None:
            self._start(self._judge(plan), Role.GENRM, 0)
            return
        self._result.num_judged += not is_rollout
        self._member_ended(plan.group_id)

    def _lose(self, attempt: Attempt) -> None:
        """The box is gone: the attempt starts over under a higher generation."""
        self._close(attempt)
        self._result.num_lost_attempts += 1
        self._send(
            Failed,
            trajectory_id=attempt.trajectory_id,
            generation=attempt.generation,
            kind=FailureKind.INFRA,
        )
        self._start(attempt.plan, attempt.role, attempt.generation + 1)

    def cut(self, cut: Cut) -> None:
        self._agenda.now(self._cut, self._attempts[cut.trajectory_id])

    def _cut(self, attempt: Attempt) -> None:
        """Cancel an attempt; a group that has lost one is rejected when all have ended."""
        if attempt.is_over:
            return
        if attempt.worker_id is not None:
            self.hosts.abort(attempt)
        self._close(attempt)
        self._cut_groups.add(attempt.plan.group_id)
        self._result.cut.append(attempt.plan)
        self._send(
            Failed,
            trajectory_id=attempt.trajectory_id,
            generation=attempt.generation,
            kind=FailureKind.CANCELLED,
        )
        self._member_ended(attempt.plan.group_id)

    def _close(self, attempt: Attempt) -> None:
        attempt.is_over = True
        del self._attempts[attempt.trajectory_id]
        for holder in (attempt.home_id, attempt.warm_id):
            if holder is not None:
                self.hosts.forget(holder, attempt.key)

    def _member_ended(self, group_id: str) -> None:
        self._groups[group_id] -= 1
        if self._groups[group_id] > 0:
            return
        del self._groups[group_id]
        tokens = self._group_tokens.pop(group_id)
        if group_id in self._cut_groups:
            self._give_up_finished_members(group_id)
            self._send(GroupRejected, group_id=group_id)
        else:
            self._send(GroupAccepted, group_id=group_id)
            self._group_ready(tokens)

    def _give_up_finished_members(self, group_id: str) -> None:
        ended = self._result.ended
        self._result.cut += [one.plan for one in ended if one.plan.group_id == group_id]
        self._result.ended = [one for one in ended if one.plan.group_id != group_id]
