"""The counters of each training run: what was accepted, what still runs, which version is newest.

They change with events of the run and with `Admit`, and are all that admission looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.events import GroupAccepted, GroupRejected, Published, RunStarted
from scheduler.policies import AdmissionPolicy
from scheduler.views import AdmissionView

RunEvent = RunStarted | Published | GroupAccepted | GroupRejected


@dataclass(slots=True)
class _Job:
    version: int
    accepted_groups: int
    running_groups: int
    cut_version: int = -1
    """The version at which the rest was given up; once a version is enough."""

    def counters(self) -> AdmissionView:
        return AdmissionView(
            version=self.version,
            accepted_groups=self.accepted_groups,
            running_groups=self.running_groups,
        )


class Jobs:
    """All runs that have started, and their admission."""

    def __init__(self, admission: AdmissionPolicy) -> None:
        self._admission = admission
        self._jobs: dict[str, _Job] = {}

    def update(self, event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            assert event.job not in self._jobs, f"job {event.job} started twice"
            self._jobs[event.job] = _Job(event.version, event.accepted_groups, event.running_groups)
            return
        job = self._jobs[event.job]
        if isinstance(event, Published):
            assert event.version > job.version, f"{event.version} published after {job.version}"
            job.version = event.version
            return
        assert job.running_groups > 0, f"{event.group_id} ended and was never admitted"
        job.running_groups -= 1
        job.accepted_groups += isinstance(event, GroupAccepted)

    def counters(self) -> dict[str, AdmissionView]:
        return {name: job.counters() for name, job in self._jobs.items()}

    def wants_cut(self, name: str) -> bool:
        """Whether running groups are not needed any more; asked for once a version."""
        job = self._jobs[name]
        is_new = job.cut_version < job.version and self._admission.cuts(job.counters())
        if is_new:
            job.cut_version = job.version
        return is_new

    def admit(self, name: str) -> int:
        """How many groups start now; they count as running from here on."""
        job = self._jobs[name]
        num_groups = self._admission.admit(job.counters())
        job.running_groups += num_groups
        return num_groups
