"""How simulated workers carry out handoffs: in drawn times, and sometimes not at all."""

from __future__ import annotations

from numpy.random import Generator

from scheduler.decisions import HandoffEnded, HandoffOrder, Outcome, Shift
from scheduler.events import HandoffFailed, HandoffStage, Stage
from scheduler.sim.agenda import Agenda
from scheduler.sim.attempts import Send
from scheduler.sim.faults import Faults
from scheduler.sim.hosts import Server, SimulatedHosts
from scheduler.sim.specs import ClusterResult, StageTimes


class Handoffs:
    def __init__(
        self,
        *,
        agenda: Agenda,
        send: Send,
        hosts: SimulatedHosts,
        faults: Faults,
        times: StageTimes,
        rng: Generator,
        result: ClusterResult,
    ) -> None:
        self._agenda = agenda
        self._send = send
        self._hosts = hosts
        self._faults = faults
        self._times = times
        self._rng = rng
        self._result = result
        self._quiescing: dict[str, HandoffOrder] = {}
        """Workers whose last turns may still end."""
        self._began: dict[str, float] = {}
        hosts.emptied = self._emptied

    def shift(self, shift: Shift) -> None:
        """Adopt the new generation, or say that the worker is not what the shift was based on."""
        name = shift.worker_id
        server = self._hosts[name]
        self._hosts.generations[name] = max(self._hosts.generations[name], shift.generation)
        if not self._hosts.is_current(server, shift.worker_generation):
            self._agenda.now(self._report_failure, name, shift.generation, Stage.QUIESCE)
            return
        self._result.num_shifts += 1
        self._began[name] = self._agenda.t
        server.generation = shift.generation
        server.is_leaving = True

    def order(self, order: HandoffOrder) -> None:
        server = self._hosts[order.worker_id]
        if order.stage is Stage.RESTART:
            self._hosts.generations[order.worker_id] = order.generation
            server.generation = order.generation
        if not self._hosts.is_current(server, order.generation):
            return  # its loss is reported, or the shift was answered as failed
        if self._faults.stage_hangs():
            return
        source = server.duty.role
        seconds = self._times.draw_s(order.stage, source, order.duty.role, self._rng)
        self._agenda.after(seconds, self._carried_out, server, order)

    def _carried_out(self, server: Server, order: HandoffOrder) -> None:
        if not self._hosts.is_current(server, order.generation):
            return
        if order.stage is not Stage.RESTART and self._faults.stage_fails():
            self._report_failure(order.worker_id, order.generation, order.stage)
            return
        match order.stage:
            case Stage.QUIESCE:
                self._quiescing[order.worker_id] = order
                if not server.turns:
                    self._emptied(server)
                return
            case Stage.RELEASE:
                self._hosts.release(server)
            case Stage.WARM | Stage.RESTART:
                self._left(order.worker_id)
                self._hosts.serve_duty(server, order.duty)
                return
            case _:
                pass
        self._report(order)

    def _emptied(self, server: Server) -> None:
        order = self._quiescing.pop(server.spec.worker_id, None)
        if order is not None and self._hosts.is_current(server, order.generation):
            self._report(order)

    def _report(self, order: HandoffOrder) -> None:
        self._send(
            HandoffStage,
            worker_id=order.worker_id,
            generation=order.generation,
            stage=order.stage,
            version=order.version,
        )

    def _report_failure(self, worker_id: str, generation: int, stage: Stage) -> None:
        self._send(HandoffFailed, worker_id=worker_id, generation=generation, stage=stage)

    def ended(self, ended: HandoffEnded) -> None:
        name = ended.worker_id
        server = self._hosts[name]
        self._quiescing.pop(name, None)
        match ended.outcome:
            case Outcome.ROLLED_BACK:
                self._hosts.generations[name] = ended.generation
                if self._hosts.is_current(server, ended.generation - 1):
                    server.generation = ended.generation
                    self._left(name)
                    self._agenda.now(self._back, server, ended.generation)
            case Outcome.UNKNOWN:
                self._agenda.now(self._hosts.lose, server)
            case _:
                self._left(name)

    def _back(self, server: Server, generation: int) -> None:
        if self._hosts.is_current(server, generation):
            self._hosts.report_ready(server)

    def _left(self, worker_id: str) -> None:
        began_t = self._began.pop(worker_id, None)
        if began_t is not None:
            self._result.shift_seconds += self._agenda.t - began_t
