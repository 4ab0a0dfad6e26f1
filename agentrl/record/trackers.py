"""Metrics for the trackers people already watch, beside the record.

A tracker gets numbers and nothing else, and it may fail (a full disk, a lost connection) without
any harm to the run: it is switched off then, and a warning says so.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, assert_never

import structlog

from agentrl.types import Json

log = structlog.get_logger(__name__)

TrackerName = Literal["tensorboard", "wandb"]


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def missing_trackers(names: Iterable[TrackerName]) -> list[TrackerName]:
    """Those whose package is not installed; each comes with the extra of its name."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def open_trackers(
    names: Iterable[TrackerName], run: Path, config: Mapping[str, Json]
) -> list[Tracker]:
    """Trackers of a run, which write below its folder. Raises ValueError for a missing package."""
    names = list(names)
    if missing := missing_trackers(names):
        extras = ",".join(missing)
        raise ValueError(
            f"trackers: {', '.join(missing)} is not installed; "
            f"pip install 'agentrl-runtime[{extras}]', or take it out of `trackers`"
        )
    return [Guarded(name, _open(name, run, config)) for name in names]


def _open(name: TrackerName, run: Path, config: Mapping[str, Json]) -> Tracker:
    match name:
        case "tensorboard":
            return TensorBoard(run)
        case "wandb":
            return WeightsAndBiases(run, config)
    assert_never(name)


class TensorBoard:
    """Event files under `<run>/tensorboard`; `tensorboard --logdir runs` shows all runs."""

    def __init__(self, run: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(run / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run below `<run>/wandb`, offline unless WANDB_MODE asks for more; `wandb sync` uploads."""

    def __init__(self, run: Path, config: Mapping[str, Json]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project="agentrl",
            name=run.name,
            dir=str(run),
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Guarded:
    """A tracker that can fail without harm."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.log(step, values)
        except Exception as error:  # noqa: BLE001 - the policy is: a tracker never ends a run
            self._give_up(error)

    def close(self) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 - the policy is: a tracker never ends a run
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracker = None
        log.warning(
            "a tracker failed and gets no more metrics", tracker=self._name, error=str(error)
        )
