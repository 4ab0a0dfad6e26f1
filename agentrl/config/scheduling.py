"""The section `scheduler`: the policies that place turns and shift workers, by name."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.types import Json


class RoutingSection(Section):
    """Which worker serves a turn, and who goes first where slots are scarce."""

    policy: Literal[
        "least_load", "round_robin", "elapsed_queue", "libra_gate", "sibling_rule", "buckets"
    ] = Field("least_load", description="docs/scheduling.md says what each does and is worth.")
    options: dict[str, Json] = Field(
        default_factory=dict, description="Of the policy, such as {sticky_gap: 0.25}."
    )


class ShiftingSection(Section):
    """When a worker changes its role, in the layout `elastic`."""

    policy: Literal["pay_back", "kv_rule", "seeding_controller", "itl_planner"] = Field(
        "pay_back", description="docs/scheduling.md says what each does and is worth."
    )
    options: dict[str, Json] = Field(
        default_factory=dict, description="Of the policy, such as {immunity_s: 4.0}."
    )


class SchedulerSection(Section):
    """The policies of the run; `agentrl simulate --trace RUN` compares them on a recorded one."""

    routing: RoutingSection = Field(default_factory=RoutingSection)
    shifting: ShiftingSection = Field(default_factory=ShiftingSection)
