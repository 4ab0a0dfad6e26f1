"""What a run of the elastic bench says of itself: seconds, groups, shifts, stalls and rewards."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ran:
    """A run folder of a run that came to its end."""

    folder: Path

    @property
    def step_seconds(self) -> list[float]:
        """Of the steps after the first, which a run begins with."""
        return [line["seconds"] for line in self._steps()[1:]]

    @property
    def rewards(self) -> list[float]:
        """Mean reward of the attempts of each step."""
        return [line["reward"] for line in self._steps()]

    @property
    def eval_reward(self) -> float:
        reward: float = json.loads((self.folder / "summary.json").read_text())["eval_reward"]
        return reward

    @property
    def shifts(self) -> Counter[str]:
        """Completed handoffs, by the role that the worker has then."""
        return Counter(
            decision["duty"]["role"]
            for entry in self._events()
            for decision in entry["decisions"]
            if decision["type"] == "HandoffEnded" and decision["outcome"] == "completed"
        )

    @property
    def stalled_steps(self) -> int:
        """Steps whose batch waited longer for training workers than it was trained on."""
        waits: dict[int, float] = {}
        trained: dict[int, float] = {}
        for entry in self._events():
            event = entry["event"]
            match event["type"]:
                case "BatchReady":
                    waits[event["step"]] = -event["t"]
                case "StepStarted":
                    waits[event["step"]] += event["t"]
                case "StepEnded":
                    trained[event["step"]] = event["seconds"] - waits[event["step"]]
        return sum(waits[step] > trained[step] for step in trained)

    @property
    def groups(self) -> Counter[str]:
        """How often each group was trained on."""
        rows = _lines(self.folder / "trajectories" / "index.jsonl")
        trained = {(row["step"], row["group_id"]) for row in rows if row["split"] == "train"}
        return Counter(group_id for _, group_id in trained)

    def _steps(self) -> list[dict[str, Any]]:
        return [line for line in _lines(self.folder / "metrics.jsonl") if "train_s" in line]

    def _events(self) -> list[dict[str, Any]]:
        return _lines(self.folder / "events.jsonl")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
