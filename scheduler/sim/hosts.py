"""The workers of a simulated cluster: they decode, are lost and come back, and change their role.

A server is a worker in one role; a shift, a restart or a return makes a new one under a higher
generation, with empty caches. A lost worker comes back in the role it started the run with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import inf

from scheduler.costs import Shape
from scheduler.decisions import Duty, Place, Prewarm
from scheduler.events import PreemptionNotice, Role, WeightsLoaded, WorkerLost, WorkerReady
from scheduler.sim.agenda import Agenda
from scheduler.sim.attempts import Attempt, Send
from scheduler.sim.faults import Faults
from scheduler.sim.requests import DecodeWorker, Key, Request, WorkerStats
from scheduler.sim.specs import Elasticity, WorkerSpec


@dataclass(slots=True)
class Server:
    spec: WorkerSpec
    duty: Duty
    shape: Shape
    max_running: int
    worker: DecodeWorker
    generation: int
    since_t: float
    is_up: bool = True
    is_leaving: bool = False
    due_t: float = inf
    turns: dict[Key, Attempt] = field(default_factory=dict)


class SimulatedHosts:
    """See the module docstring."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        send: Send,
        faults: Faults,
        make_worker: Callable[[Shape], DecodeWorker],
        elasticity: Elasticity | None,
        turn_ended: Callable[[Attempt], None],
    ) -> None:
        self._agenda = agenda
        self._send = send
        self._faults = faults
        self._make_worker = make_worker
        self._elasticity = elasticity
        self._turn_ended = turn_ended
        self._servers: dict[str, Server] = {}
        self._touched: dict[str, None] = {}
        self._totals: dict[str, WorkerStats] = {}
        self.generations: dict[str, int] = {}
        """The newest of each worker that anybody has spoken of."""
        self.version = 0
        self.emptied: Callable[[Server], None] = lambda server: None
        """Told when the last turn of a leaving server is gone."""
        self.died: Callable[[Server], None] = lambda server: None
        self.lost: Callable[[Server], None] = lambda server: None
        """Told when the loss of a server is known, some time after it died."""

    def __getitem__(self, worker_id: str) -> Server:
        return self._servers[worker_id]

    def is_current(self, server: Server, generation: int) -> bool:
        return server.is_up and self._servers[server.spec.worker_id] is server and (
            server.generation == generation
        )  # fmt: skip

    # ------------------------------------------------------------------------- in and out of service

    def start(self, spec: WorkerSpec) -> None:
        """A worker begins, or begins anew, in the role of its spec."""
        name = spec.worker_id
        duty = Duty(
            role=spec.role,
            bucket=spec.bucket,
            accelerators=frozenset(spec.accelerators or (name,)),
        )
        generation = self.generations.get(name, -1) + 1
        self._serve_as(spec, duty, spec.shape, spec.max_running, generation)

    def serve_duty(self, server: Server, duty: Duty) -> None:
        """A handoff or a restart is through."""
        assert self._elasticity is not None
        shape = server.spec.shape
        if duty.role is not Role.TRAINING:
            shape = self._elasticity.shapes[duty.role, duty.bucket, len(duty.accelerators)]
        max_running = self._elasticity.max_running
        self._serve_as(server.spec, duty, shape, max_running, server.generation)

    def _serve_as(
        self, spec: WorkerSpec, duty: Duty, shape: Shape, max_running: int, generation: int
    ) -> None:
        name = spec.worker_id
        if name in self._servers:
            self._keep_stats(self._servers[name])
        server = Server(
            spec, duty, shape, max_running, self._make_worker(shape), generation, self._agenda.t
        )
        self._servers[name] = server
        self.generations[name] = generation
        self.report_ready(server)
        life = self._faults.life_s() if spec.is_preemptible else None
        if life is not None:
            notice = min(life, self._faults.notice_s())
            if notice > 0:
                self._agenda.after(life - notice, self._notice, server, notice)
            self._agenda.after(life, self.lose, server)

    def report_ready(self, server: Server) -> None:
        server.is_leaving = False
        self._send(
            WorkerReady,
            worker_id=server.spec.worker_id,
            generation=server.generation,
            role=server.duty.role,
            bucket=server.duty.bucket,
            tp=len(server.duty.accelerators) if self._elasticity else server.shape.tp,
            max_running=server.max_running,
            kv_tokens=server.shape.kv_tokens,
            policy_version=self.version,
            accelerators=tuple(sorted(server.duty.accelerators)) if self._elasticity else (),
        )

    def release(self, server: Server) -> None:
        """Caches and batch are gone."""
        self._keep_stats(server)
        server.worker = self._make_worker(server.shape)
        server.due_t = inf

    def _notice(self, server: Server, notice_s: float) -> None:
        if self.is_current(server, server.generation):
            self._send(
                PreemptionNotice,
                worker_id=server.spec.worker_id,
                generation=server.generation,
                deadline_s=notice_s,
            )

    def lose(self, server: Server) -> None:
        if not self.is_current(server, server.generation):
            return
        for key, attempt in server.turns.items():
            attempt.keep(server.worker.abort(self._agenda.t, key))
        server.turns.clear()
        server.is_up = False
        self.died(server)
        self._agenda.after(self._faults.detection_s(), self._report_loss, server)
        self._agenda.after(self._faults.down_s(), self.start, server.spec)

    def _report_loss(self, server: Server) -> None:
        self._send(WorkerLost, worker_id=server.spec.worker_id, generation=server.generation)
        self.lost(server)

    # ------------------------------------------------------------------------------------- turns

    def serve(self, place: Place, attempt: Attempt, request: Request) -> bool:
        server = self._servers[place.worker_id]
        is_there = (
            self.is_current(server, place.worker_generation)
            and not server.is_leaving
            and not self._faults.is_unreached()
        )
        if is_there:
            server.turns[request.key] = attempt
            server.worker.add(self._agenda.t, request)
            self._touched[place.worker_id] = None
        return is_there

    def prewarm(self, prewarm: Prewarm, request: Request) -> bool:
        server = self._servers[prewarm.worker_id]
        is_there = self.is_current(server, prewarm.worker_generation) and not server.is_leaving
        if is_there:
            server.worker.add(self._agenda.t, request)
            self._touched[prewarm.worker_id] = None
        return is_there

    def abort(self, attempt: Attempt) -> None:
        assert attempt.worker_id is not None
        server = self._servers[attempt.worker_id]
        if server.turns.pop(attempt.key, None) is None:
            attempt.worker_id = None
            return
        self._touched[attempt.worker_id] = None
        attempt.keep(server.worker.abort(self._agenda.t, attempt.key))
        if server.is_leaving and not server.turns:
            self.emptied(server)

    def forget(self, worker_id: str, key: Key) -> None:
        self._servers[worker_id].worker.forget(key)

    def plan(self) -> None:
        """After all that happened in an instant: workers begin their next actions."""
        while self._touched:
            worker_id, _ = self._touched.popitem()
            server = self._servers[worker_id]
            if not server.is_up:
                continue
            server.worker.plan(self._agenda.t)
            due_t = server.worker.next_t()
            if due_t < inf and due_t != server.due_t:
                server.due_t = due_t
                self._agenda.at(due_t, self._due, server, due_t)

    def _due(self, server: Server, due_t: float) -> None:
        if not self.is_current(server, server.generation) or server.worker.next_t() != due_t:
            return
        server.due_t = inf
        self._touched[server.spec.worker_id] = None
        ended = [server.turns.pop(key) for key in server.worker.advance(self._agenda.t)]
        for attempt in ended:  # what one end leads to may call off the turns that still run here
            self._turn_ended(attempt)
        if server.is_leaving and not server.turns:
            self.emptied(server)

    # ----------------------------------------------------------------------------------- weights

    def published(self, version: int, pull_s: float) -> None:
        self.version = version
        for server in list(self._servers.values()):
            if server.duty.role is Role.ROLLOUT:
                self._agenda.after(pull_s, self._load, server, server.generation, version, pull_s)

    def _load(self, server: Server, generation: int, version: int, seconds: float) -> None:
        if self.is_current(server, generation) and not server.is_leaving:
            self._send(
                WeightsLoaded,
                worker_id=server.spec.worker_id,
                generation=generation,
                version=version,
                seconds=seconds,
            )

    # ------------------------------------------------------------------------------------- stats

    def _keep_stats(self, server: Server) -> None:
        total = self._totals.setdefault(server.spec.worker_id, WorkerStats())
        for each in fields(WorkerStats):
            value = getattr(total, each.name) + getattr(server.worker.stats, each.name)
            setattr(total, each.name, value)

    def stats(self) -> dict[str, WorkerStats]:
        """Of all servers each worker has been; asked for once, at the end."""
        for server in self._servers.values():
            self._keep_stats(server)
        return self._totals
