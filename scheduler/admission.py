"""May more groups start? Staleness and memory decide.

The rule is AReaL's capacity inequality (arXiv 2505.24298), counted in groups. Were groups trained on
in the order in which they start, none would be more than `max_staleness` steps old by then. One that
is overtaken by later ones may be: nothing waits for it, and it is not given up, so long attempts are
never starved. With `max_staleness` 0 it is the synchronous batch: exactly one step's groups start
after each publication, and a rejected group is replaced at once.

`OverSample` does: it starts more groups than a step needs and gives up those that are not ready
when enough are. Steps are shorter, and what is given up is long; `agentrl simulate` shows how much
of the tail is never trained on. A baseline (RollPacker's short round, without its later long one).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from scheduler.views import AdmissionView


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAdmission:
    """accepted + running <= (max_staleness + version + 1) * groups_per_step."""

    groups_per_step: int
    num_steps: int
    """Optimizer steps of the whole run; no more groups are accepted than they train on."""
    max_staleness: int = 0
    max_running_groups: int

    def __post_init__(self) -> None:
        if self.max_running_groups < 1:
            raise ValueError(
                f"max_running_groups is {self.max_running_groups}, at least 1 is needed: "
                "allow as many running attempts as one group has"
            )

    def admit(self, counters: AdmissionView) -> int:
        steps_allowed = min(self.max_staleness + counters.version + 1, self.num_steps)
        open_groups = counters.accepted_groups + counters.running_groups
        by_staleness = steps_allowed * self.groups_per_step - open_groups
        by_memory = self.max_running_groups - counters.running_groups
        return max(0, min(by_staleness, by_memory))

    def cuts(self, counters: AdmissionView) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSample:
    """Start `factor` times the groups of a step, keep the first that are ready, cut the rest."""

    groups_per_step: int
    num_steps: int
    factor: float = 1.25

    def admit(self, counters: AdmissionView) -> int:
        if self._is_full(counters):
            return 0
        missing = self._wanted(counters) - counters.accepted_groups
        return max(0, ceil(self.factor * missing) - counters.running_groups)

    def cuts(self, counters: AdmissionView) -> bool:
        return self._is_full(counters) and counters.running_groups > 0

    def _wanted(self, counters: AdmissionView) -> int:
        return min(counters.version + 1, self.num_steps) * self.groups_per_step

    def _is_full(self, counters: AdmissionView) -> bool:
        return counters.accepted_groups >= self._wanted(counters)
