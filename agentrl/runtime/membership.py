"""A replica's place among those that train together, and what a place that falls empty means.

Apart from `replicas`, which needs torch: whoever orders replicas about needs only this.
"""

from __future__ import annotations

from dataclasses import dataclass


class ReplicaLost(RuntimeError):
    """Another replica left in the middle of something; what was computed together is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A replica's place: `rank` of `size`, meeting at `host:port`, where rank 0 is the host."""

    rank: int
    size: int
    host: str = ""
    port: int = 0
