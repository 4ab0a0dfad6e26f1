"""What work costs on this machine: kept in the run folder, and read by policies that weigh seconds.

The router over buckets and shifts that must pay for themselves need to know what a decode step, a
prompt, an optimizer step and a change of role take here. `agentrl.runtime.probe` measures it once;
later launches and `agentrl replay` decide by the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from scheduler.costs import DecodeCost, PrefillCost, Shape, TrainCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one worker on one core or accelerator."""

    rollout: Mapping[str, Shape]
    """By bucket."""
    genrm: Shape | None
    training: TrainCost
    serving_start_s: float
    """Building what rollout needs."""
    training_start_s: float

    def save(self, path: Path) -> None:
        path.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    @classmethod
    def load(cls, path: Path) -> Self:
        data = orjson.loads(path.read_bytes())
        return cls(
            rollout={name: _shape(shape) for name, shape in data["rollout"].items()},
            genrm=None if data["genrm"] is None else _shape(data["genrm"]),
            training=TrainCost(**data["training"]),
            serving_start_s=data["serving_start_s"],
            training_start_s=data["training_start_s"],
        )


def _shape(data: Mapping[str, Any]) -> Shape:
    return Shape(
        tp=data["tp"],
        decode=DecodeCost(**data["decode"]),
        prefill=PrefillCost(**data["prefill"]),
        kv_tokens=data["kv_tokens"],
    )
